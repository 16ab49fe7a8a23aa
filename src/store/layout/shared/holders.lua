-- Who holds a lock with shares: each holder once, the one whose lease ends first before the others.
-- Writes nothing, so what has expired may still be there. In front of queue/inspect.lua.
local now = math.floor(clock() / 1000)
local members = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
local held = {}
for at = 1, #members, 2 do
  local token, number = members[at]:match('^([rwp][%d/]*:[%x-]+@[%w._-]+)(#?%d*)$')
  if not token then
    return {2}
  end
  local rest = members[at + 1] - now
  if number == '' and rest >= 0 then
    held[#held + 1] = token
    held[#held + 1] = rest
  end
end
