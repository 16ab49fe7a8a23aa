-- Acquires a plain lock, or enters its queue and says how long it is held.
--
-- KEYS  1 the lock   2 its fence counter   3 its queue   4 its waiters
-- ARGV  1 token   2 lease (ms)   3 whether a key that holds the token already is ours (0 or 1)
--       4 how many fences to reserve, 0 for none; and of a waiter that queues
--       5 inbox   6 attempt   7 how long an entry counts as alive (ms)   8 first lease of a hand-off (ms)
-- Result  {1, last fence or 0, how many} granted   {0, rest of the lease in ms, whether the waiter is heard (0 or 1)} refused   {2} foreign data
local token, inbox = ARGV[1], ARGV[5]
local kind = redis.call('TYPE', lock).ok
if kind ~= 'none' and kind ~= 'string' then
  return {2}
end
local holder = redis.call('GET', lock)
local queued = redis.call('EXISTS', queue) == 1
local mine = holder == token and ARGV[3] == '1'
if mine or (not holder and (not queued or serve(token) ~= 'served')) then
  local fence = reserve(tonumber(ARGV[4]))
  -- The whole lease again, but never an earlier end: this may be a late copy, and the lease have been extended since.
  -- Written also where the end does not move: a replica refuses that, and must not say that it is ours (R35).
  redis.call('SET', lock, token, 'PX', mine and math.max(redis.call('PTTL', lock), ARGV[2]) or ARGV[2])
  if queued then
    leave(queue, waiters, token)
  end
  return {1, fence, ARGV[4]}
end
if inbox then
  -- A waiter that was notified stays one that was notified.
  local condition = queued and select(6, look(waiters, token, 0)) or ''
  enter(queue, waiters, token, clock(), tonumber(ARGV[7]), table.concat({ARGV[6], ARGV[8], ARGV[4], inbox, condition}, '|'))
end
return {0, redis.call('PTTL', lock), 1}
