-- Says who holds a lock, and who waits for it. Writes nothing. Behind plain/holders.lua or
-- shared/holders.lua.
--
-- KEYS  1 the lock; and to look at the queue, all others: see keys.lua
-- ARGV  1 whether to look at the fence counter, too (0 or 1)
-- Result  {{token, rest of the lease in ms or -1 for one without an end, token, rest, …},
--           fence counter or 0, {token of each living waiter in the queue}}   {2} foreign data
if not KEYS[2] then
  return {held, 0, {}}
end
local waiting, holds = {}, {}
for at = 1, #held, 2 do
  holds[held[at]] = true
end
for _, token in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  local alive = (redis.call('HGET', KEYS[4], token) or ''):match('^(%d+)|')
  -- Holders may be in the queue: see `serve`.
  if alive and tonumber(alive) >= clock() / 1000 and not holds[token] then
    waiting[#waiting + 1] = token
  end
end
return {held, ARGV[1] == '1' and redis.call('GET', KEYS[2]) or 0, waiting}
