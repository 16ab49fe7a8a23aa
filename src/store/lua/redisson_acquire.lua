-- Acquires a lock of Redisson's, or says how long it is held.
--
-- KEYS  1 the lock   2 its fence counter, only with fences
-- ARGV  1 owner   2 lease (ms)   3 whether a lock that has this owner already is ours (0 or 1)   4 how many fences to reserve, 0 for none
-- Result  {1, last fence or 0, how many} granted   {0, rest of the lease in ms, or -1 for one without an end} refused   {2} foreign data
local lock, counter, owner = KEYS[1], KEYS[2], ARGV[1]
local held_by = holder()
if held_by == false then
  return {2}
end
local mine = held_by == owner and ARGV[3] == '1'
if held_by and not mine then
  return {0, redis.call('PTTL', lock)}
end
local fence = 0
if ARGV[4] ~= '0' then
  -- Redisson adds 1 to the same counter. It never lags behind the server's clock in µs, and so grows also after it was lost.
  fence = redis.call('INCRBY', counter, ARGV[4])
  local now = redis.call('TIME')
  local behind = now[1] * 1000000 + now[2] - fence
  if behind > 0 then
    fence = redis.call('INCRBY', counter, string.format('%.0f', behind))
  end
end
local rest = tonumber(ARGV[2])
if mine then
  -- Another attempt of the same acquisition: no second hold, the whole lease again, and never an earlier end. It may be a late copy, and
  -- the lease have been extended since.
  rest = math.max(rest, redis.call('PTTL', lock))
else
  redis.call('HSET', lock, owner, 1)
end
-- Written also where the end does not move: a replica refuses that, and must not say that it is ours (R35).
redis.call('PEXPIRE', lock, rest)
return {1, fence, ARGV[4]}
