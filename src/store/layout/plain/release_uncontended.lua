-- Releases a plain lock that is ours and that nobody waits for; everything else is left to the rest
-- of the script, whose functions cost more. Keys, arguments and result: see release.lua.
if redis.call('EXISTS', KEYS[3]) == 0 then
  if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
  end
  return redis.call('DEL', KEYS[1])
end
