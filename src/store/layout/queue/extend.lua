-- Extends a lease that is ours. Never creates one, and never moves its end to an earlier time.
--
-- KEYS  1 the lock
-- ARGV  1 token   2 the new rest of the lease in ms
-- Result  1 ours   0 not ours
put(ARGV[1], ARGV[2])
return 1
