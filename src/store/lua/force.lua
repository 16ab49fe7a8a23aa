-- Releases a plain lock, whoever holds it, and hands it to the first waiter that listens. Foreign data is left alone: GET refuses it.
--
-- KEYS  1 the lock   2 its fence counter   3 its queue   4 its waiters
-- ARGV  1 the name of this call, which is carried out once: sent again, it would release the next holder's lock, too
-- Result  1 released   0 nobody held it
local holder, forced = redis.call('GET', lock), stem .. 'forced'
if redis.call('GET', forced) == ARGV[1] then
  return 1
end
if not holder then
  return 0
end
-- A server that is out of memory refuses this, and has to release all the same.
redis.pcall('SET', forced, ARGV[1], 'PX', '10000')
if serve('') ~= 'served' then
  redis.call('DEL', lock)
end
return 1
