-- Releases a lease if it is ours and nobody waits: see acquire_uncontended.lua.
if redis.call('EXISTS', KEYS[3]) == 0 then
  if not mine(ARGV[1]) then
    return 0
  end
  remove(ARGV[1])
  return 1
end

