-- Says who holds the lock: each holder once, the one whose lease ends first before the others.
-- Writes nothing.
--
-- KEYS  1 the lock
-- Result  {token, rest of the lease in ms, token, rest, …}   {2} foreign data
local now = math.floor(clock() / 1000)
local members = redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf', 'WITHSCORES')
local holders = {}
for at = 1, #members, 2 do
  local member = members[at]
  if member:match('^[rwp][%d/]*:[%x-]+$') then
    holders[#holders + 1] = member
    holders[#holders + 1] = members[at + 1] - now
  elseif not member:find('#', 1, true) then
    return {2}
  end
end
return holders
