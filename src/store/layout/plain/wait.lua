-- Enters a condition and releases the lock in one step, so that no notification can come between
-- the two. Later calls keep the place in the condition.
--
-- KEYS  1 the lock   2 its fence counter   3 its queue   4 its waiters   5 the condition's queue
--       6 the condition's waiters
-- ARGV  1 the waiter's token   2 lease (ms)   3 how many fences to reserve, 0 for none
--       4 inbox   5 attempt   6 how long an entry counts as alive (ms)
--       7 first lease of a hand-off (ms)
--       8 the token whose lease is to be released, or ''
--       9 whether to leave the condition (0 or 1)
-- Result  {0, whether it can be reached (0 or 1; 2: this user may not ask)} waits
--         {1, last fence or 0, how many} was notified and is the owner   {2} foreign data
--         {3} is not in the condition (any more)   {4} the lease to be released is not ours
--         {5, rest of the lease in ms, whether it can be reached} was notified and queues for the
--           lock
local token, holder, leaves = ARGV[1], redis.call('GET', lock), ARGV[9] == '1'
local line, entries = KEYS[5], KEYS[6]
local life = tonumber(ARGV[6])
local rest = table.concat({ARGV[5], ARGV[7], ARGV[3]}, '|')
local entry = {alive = clock() / 1000 + life, rest = rest, inbox = ARGV[4]}
if holder == token then
  return take(token, ARGV[2], ARGV[3], true)
end
local waits = redis.call('ZSCORE', line, token)
if waits then
  if leaves then
    leave(line, entries, token)
  else
    enter(line, entries, token, entry)
  end
end
-- A sign of life. Also a review of the notifications for which other waiters do not come: one may
-- pass to this waiter right now.
if redis.call('EXISTS', owed) == 1 then
  outlast(owed, life * 2)
  conditions().review(token)
end
-- Also a waiter whose handed-over lease ran out before it was told: it was notified all the same.
if redis.call('ZSCORE', queue, token) or redis.call('HGET', owed, token) then
  enter(queue, waiters, token, entry)
  if not holder and serve(token) ~= 'served' then
    return take(token, ARGV[2], ARGV[3], false)
  end
  return {5, redis.call('PTTL', lock), heard(ARGV[4])}
end
if waits then
  return leaves and {3} or {0, heard(ARGV[4])}
end
if ARGV[8] == '' then
  return {3}
end
if holder ~= ARGV[8] then
  return {4}
end
if not leaves then
  enter(line, entries, token, entry)
end
-- This lease may itself have been handed over after a notification.
settle(holder)
hand_over_or_delete()
return leaves and {3} or {0, heard(ARGV[4])}
