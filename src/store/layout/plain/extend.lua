-- Moves the end of a plain lease if it is ours. Never creates one.
--
-- KEYS  1 the lock
-- ARGV  1 token   2 the new rest of the lease in ms   3 whether also to an earlier end (0 or 1)
--       4 given if this is the first command of a waiter that was notified and handed the lock:
--       the key of `owed`, see queue.lua
-- Result  1 ours   0 not ours
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local rest = tonumber(ARGV[2])
if ARGV[3] ~= '1' then
  rest = math.max(rest, redis.call('PTTL', KEYS[1]))
end
-- Written even if the end does not move: a replica refuses the write, and so cannot say that the
-- lease is ours (R35).
redis.call('PEXPIRE', KEYS[1], rest)
-- The lease is ours whatever somebody else may have put under that key.
if ARGV[4] and redis.pcall('HDEL', ARGV[4], ARGV[1]) == 1 and redis.call('HLEN', ARGV[4]) == 1 then
  redis.call('DEL', ARGV[4])
end
return 1
