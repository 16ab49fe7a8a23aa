-- Enters a condition and releases the lock, at one stroke, so that no notification can fall between the two; later keeps the place in it.
--
-- KEYS  1 the lock   2 its fence counter   3 its queue   4 its waiters   5 the condition's queue   6 the condition's waiters
-- ARGV  1 the waiter's token   2 lease (ms)   3 how many fences to reserve, 0 for none
--       4 inbox   5 attempt   6 how long an entry counts as alive (ms)   7 first lease of a hand-off (ms)
--       8 the token whose lease is to be released, or ''   9 whether to leave the condition (0 or 1)
-- Result  {0} waits   {1, last fence or 0, how many} was notified and is the owner   {2, rest of the lease in ms, whether it is heard} was notified and queues for the lock
--         {3} is not in the condition (any more)   {4} the lease to be released is not ours
local token, holder = ARGV[1], redis.call('GET', lock)
local line, entries = KEYS[5], KEYS[6]
local rest = table.concat({ARGV[5], ARGV[7], ARGV[3], ARGV[4], ''}, '|')
if holder == token then
  local fence = reserve(tonumber(ARGV[3]))
  -- Never an earlier end: this may be a late copy, and the lease have been extended since.
  -- Written also where the end does not move: a replica refuses that, and must not say that it is ours (R35).
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), ARGV[2]))
  return {1, fence, ARGV[3]}
end
if redis.call('ZSCORE', queue, token) then
  local condition = select(6, look(waiters, token, 0)) or ''
  enter(queue, waiters, token, 0, tonumber(ARGV[6]), rest .. condition)
  return {2, redis.call('PTTL', lock), 1}
end
if redis.call('ZSCORE', line, token) then
  if ARGV[9] == '1' then
    leave(line, entries, token)
    return {3}
  end
  enter(line, entries, token, 0, tonumber(ARGV[6]), rest)
  return {0}
end
if ARGV[8] == '' then
  return {3}
end
if holder ~= ARGV[8] then
  return {4}
end
if ARGV[9] == '0' then
  enter(line, entries, token, clock(), tonumber(ARGV[6]), rest)
end
if redis.call('EXISTS', queue) == 0 or serve('') ~= 'served' then
  redis.call('DEL', lock)
end
return {ARGV[9] == '1' and 3 or 0}
