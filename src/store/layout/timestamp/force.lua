-- Releases a lock that holds a deadline, no matter who wrote it. A deadline that has passed is
-- no hold; foreign data is left alone.
--
-- KEYS  1 the lock   2 our mark
-- Result  1 released   0 nobody held it   2 foreign data
local value = deadline()
if value == false then
  return 2
end
if not value or has_passed(value, clock()) then
  return 0
end
redis.call('DEL', lock, mark)
return 1
