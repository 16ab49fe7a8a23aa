-- Ends a lease of Redisson's that is ours, and keeps the lock for a while: under an owner that
-- nobody has, so that a late extend finds nothing. Its waiters are told, ask again, and so learn
-- for how long.
--
-- KEYS  1 the lock
-- ARGV  1 owner   2 for how long (ms)   3 the lock's channel
--       4 the command that publishes there, since Redis 7
-- Result  1 ours   0 not ours
local lock = KEYS[1]
if redis.call('HEXISTS', lock, ARGV[1]) == 0 then
  return 0
end
-- As in release.lua.
redis.call(redis.REDIS_VERSION_NUM and ARGV[4] or 'PUBLISH', ARGV[3], '0')
redis.call('DEL', lock)
redis.call('HSET', lock, 'kept:' .. ARGV[1], 1)
redis.call('PEXPIRE', lock, ARGV[2])
return 1
