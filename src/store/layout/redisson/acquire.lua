-- Acquires a lock of Redisson's, or says how long it is held.
--
-- KEYS  1 the lock   2 its fence counter, only with fences
-- ARGV  1 owner   2 lease (ms)   3 whether a lock that already has this owner is ours (0 or 1)
--       4 how many fences to reserve, 0 for none
-- Result  {1, last fence or 0, how many} granted
--         {0, rest of the lease in ms, or -1 for one without an end} refused   {2} foreign data
local lock, counter, owner = KEYS[1], KEYS[2], ARGV[1]
local held_by = holder()
if held_by == false then
  return {2}
end
local mine = held_by == owner and ARGV[3] == '1'
if held_by and not mine then
  return {0, redis.call('PTTL', lock)}
end
local fence, count = 0, 0
if ARGV[4] ~= '0' then
  -- Redisson adds 1 to the same counter. The rest is as in `reserve` of fences.lua: all new fences
  -- are greater than the counter, the last is the server's clock in µs, and the first block after a
  -- loss is a single fence.
  local now, last = redis.call('TIME'), redis.call('GET', counter)
  local known = last and last:find('^%d+$') and tonumber(last)
  if last and (not known or known > 9007194959773696) then
    return {2}
  end
  local grown = math.max((known or 0) + 1, now[1] * 1000000 + now[2]) - (known or 0)
  fence = redis.call('INCRBY', counter, string.format('%.0f', grown))
  count = known and math.min(ARGV[4], grown, 1024) or 1
end
local rest = tonumber(ARGV[2])
if mine then
  -- Another attempt of the same acquisition: no second hold, the whole lease again, and never an
  -- earlier end. It may be a late copy, and the lease may have been extended since.
  rest = math.max(rest, redis.call('PTTL', lock))
else
  redis.call('HSET', lock, owner, 1)
end
-- Written even if the end does not move: a replica refuses the write, and so cannot say that the
-- lease is ours (R35).
redis.call('PEXPIRE', lock, rest)
return {1, fence, count}
