-- Releases a plain lock of any holder, and hands it to the first waiter that listens. Foreign data
-- is left alone: GET refuses it.
--
-- KEYS  see queue.lua
-- Result  1 released   0 nobody held it
if not redis.call('GET', lock) then
  return 0
end
hand_over_or_delete()
return 1
