-- Releases a plain lock if it is ours, and hands it to the first waiter that listens.
--
-- KEYS  see queue.lua
-- ARGV  1 token
-- Result  1 released   0 not ours
if redis.call('GET', lock) ~= ARGV[1] then
  return 0
end
hand_over_or_delete(ARGV[1])
return 1
