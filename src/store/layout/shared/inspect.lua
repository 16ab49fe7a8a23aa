-- Says who holds the lock: each holder once, the one whose lease ends first before the others.
-- Writes nothing, so what has expired may still be there.
--
-- KEYS  1 the lock
-- Result  {token, rest of the lease in ms, token, rest, …}   {2} foreign data
local now = math.floor(clock() / 1000)
local members = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
local holders = {}
for at = 1, #members, 2 do
  local token, number = members[at]:match('^([rwp][%d/]*:[%x-]+)(#?%d*)$')
  if not token then
    return {2}
  end
  local rest = members[at + 1] - now
  if number == '' and rest >= 0 then
    holders[#holders + 1] = token
    holders[#holders + 1] = rest
  end
end
return holders
