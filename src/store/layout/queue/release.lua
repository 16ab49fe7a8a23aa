-- Releases a lease if it is ours, and serves the queue: also if it is not, because it may have been
-- ours until it ended.
--
-- KEYS  see keys.lua
-- ARGV  1 token
-- Result  1 released   0 not ours
return hand_over(ARGV[1])
