-- Releases the leases of all holders, and serves the queue. Foreign data is left alone.
--
-- KEYS  see keys.lua
-- Result  1 released   0 nobody held it
if foreign then
  return foreign
end
if not kind then
  return 0
end
redis.call('DEL', KEYS[1])
kind, count, full = nil, nil, false
hand_over('')
return 1
