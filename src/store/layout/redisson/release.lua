-- Releases a lock of Redisson's if it is ours, and tells its waiters.
--
-- KEYS  1 the lock
-- ARGV  1 owner   2 the lock's channel   3 the command that publishes there, since Redis 7
-- Result  1 released   0 not ours
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
-- Published first: a user who may not publish is refused before anything has changed.
-- Only Redis 7 has SPUBLISH, and this field.
redis.call(redis.REDIS_VERSION_NUM and ARGV[3] or 'PUBLISH', ARGV[2], '0')
redis.call('DEL', KEYS[1])
return 1
