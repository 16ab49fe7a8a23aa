-- Releases a plain lock of any holder, and hands it to the first waiter that listens. Foreign data
-- is left alone: GET refuses it.
--
-- KEYS  see queue.lua
-- Result  1 released   0 nobody held it
local holder = redis.call('GET', lock)
if not holder then
  return 0
end
hand_over_or_delete(holder)
return 1
