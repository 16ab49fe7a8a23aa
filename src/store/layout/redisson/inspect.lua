-- Says who holds a lock of Redisson's.
--
-- KEYS  1 the lock
-- Result  {owner, rest of the lease in ms, or -1 for one without an end}   {} if it is free
--         {2} foreign data
local held_by = holder()
if held_by == false then
  return {2}
end
if not held_by then
  return {}
end
return {held_by, redis.call('PTTL', KEYS[1])}
