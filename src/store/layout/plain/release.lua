-- Releases a plain lock if it is ours, and hands it to the first waiter that listens.
--
-- KEYS  1 the lock   2 its fence counter   3 its queue   4 its waiters
-- ARGV  1 token
--       2 given if this is the first command of a waiter that was notified and handed the lock
-- Result  1 released   0 not ours
if redis.call('GET', lock) ~= ARGV[1] then
  return 0
end
if ARGV[2] then
  despite_foreign(settle, ARGV[1])
end
hand_over_or_delete()
return 1
