-- Releases the leases of all holders, and serves the queue. Foreign data is left alone, and so are
-- readers if those of writers are to be released, and the other way round.
--
-- KEYS  see keys.lua
-- ARGV  1 what stands before the UUID in such a token
-- Result  1 released   0 nobody held it
if foreign then
  return foreign
end
if not kind or kind ~= ARGV[1]:sub(1, 1) then
  return 0
end
redis.call('DEL', KEYS[1])
kind, count, full = nil, nil, false
hand_over('')
return 1
