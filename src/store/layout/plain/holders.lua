-- Who holds a plain lock: in front of queue/inspect.lua.
local held = {redis.call('GET', KEYS[1]) or nil}
if held[1] then
  held[2] = redis.call('PTTL', KEYS[1])
end
