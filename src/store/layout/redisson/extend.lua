-- Moves the end of a lease of Redisson's if it is ours. Never creates one.
--
-- KEYS  1 the lock
-- ARGV  1 owner   2 the new rest of the lease in ms   3 whether also to an earlier end (0 or 1)
-- Result  1 ours   0 not ours
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local rest = tonumber(ARGV[2])
if ARGV[3] ~= '1' then
  rest = math.max(rest, redis.call('PTTL', KEYS[1]))
end
-- Written even if the end does not move: a replica refuses the write, and so cannot say that the
-- lease is ours (R35).
redis.call('PEXPIRE', KEYS[1], rest)
return 1
