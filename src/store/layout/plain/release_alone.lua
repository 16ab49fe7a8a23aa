-- Releases a plain lock if it is ours, and looks at no other key: see acquire_alone.lua.
--
-- KEYS  1 the lock
-- ARGV  1 token
-- Result  1 released   0 not ours
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
