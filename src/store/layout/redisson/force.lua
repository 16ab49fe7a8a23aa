-- Releases a lock of Redisson's, of any holder, and tells its waiters. Foreign data is left alone.
--
-- KEYS  1 the lock
-- ARGV  1 the lock's channel   2 the command that publishes there, since Redis 7
-- Result  1 released   0 nobody held it   2 foreign data
local held_by = holder()
if held_by == false then
  return 2
end
if not held_by then
  return 0
end
-- Only Redis 7 has SPUBLISH, and this field.
redis.call(redis.REDIS_VERSION_NUM and ARGV[2] or 'PUBLISH', ARGV[1], '0')
redis.call('DEL', KEYS[1])
return 1
