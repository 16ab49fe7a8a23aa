-- Extends a plain lease if it is ours. Never creates one, and never moves its end to an earlier
-- time.
--
-- KEYS  1 the lock
-- ARGV  1 token   2 the new rest of the lease in ms
-- Result  1 ours   0 not ours
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local rest = math.max(tonumber(ARGV[2]), redis.call('PTTL', KEYS[1]))
-- Written even if the end does not move: a replica refuses the write, and so cannot say that the
-- lease is ours (R35).
redis.call('PEXPIRE', KEYS[1], rest)
return 1
