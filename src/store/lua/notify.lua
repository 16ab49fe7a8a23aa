-- Moves waiters of a condition to the lock's queue, if the lock is ours.
--
-- KEYS  1 the lock   2 its fence counter   3 its queue   4 its waiters
-- ARGV  1 token   2 the condition's name   3 at most how many
-- Result  how many were moved, or -1 if the lock is not ours
if redis.call('GET', lock) ~= ARGV[1] then
  return -1
end
return notify(ARGV[2], tonumber(ARGV[3]), true)
