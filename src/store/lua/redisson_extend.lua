-- Moves the end of a lease of Redisson's if it is ours. Never creates one.
--
-- KEYS  1 the lock
-- ARGV  1 owner   2 the new rest of the lease in ms   3 whether also to an earlier end (0 or 1)
-- Result  1 ours   0 not ours
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
if ARGV[3] == '1' or redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
