-- Releases a plain lock, whoever holds it. Foreign data is left alone: GET refuses it.
--
-- KEYS  1 the lock
-- Result  1 released   0 nobody held it
if not redis.call('GET', KEYS[1]) then
  return 0
end
redis.call('DEL', KEYS[1])
return 1
