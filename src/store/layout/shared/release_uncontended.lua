-- Releases a lease if nobody waits: see acquire_uncontended.lua.
if redis.call('EXISTS', KEYS[3]) == 0 then
  return kind and math.min(redis.call('ZREM', KEYS[1], unpack(members(ARGV[1]))), 1) or 0
end

