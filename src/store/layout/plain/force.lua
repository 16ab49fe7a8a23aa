-- Releases a plain lock of any holder, and hands it to the first waiter that listens. Foreign data
-- is left alone: GET refuses it.
--
-- KEYS  1 the lock   2 its fence counter   3 its queue   4 its waiters
-- Result  1 released   0 nobody held it
if not redis.call('GET', lock) then
  return 0
end
hand_over_or_delete()
return 1
