-- Releases a plain lock if it is ours, and hands it to the first waiter that listens.
--
-- KEYS  1 the lock   2 its fence counter   3 its queue   4 its waiters
-- ARGV  1 token   2 given if the queue is to be left, too
-- Result  1 released   0 not ours
local token = ARGV[1]
if ARGV[2] then
  local condition = select(6, look(waiters, token, 0))
  leave(queue, waiters, token)
  if condition and condition ~= '' then
    -- It was notified and will not come: the notification passes on.
    notify(condition, 1, true)
  end
end
if redis.call('GET', lock) ~= token then
  return 0
end
if redis.call('EXISTS', queue) == 0 or serve('') ~= 'served' then
  redis.call('DEL', lock)
end
return 1
