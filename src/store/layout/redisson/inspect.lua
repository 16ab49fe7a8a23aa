-- Says who holds a lock of Redisson's.
--
-- KEYS  1 the lock; and of a fenced lock, 2 its fence counter
-- Result  {{owner, rest of the lease in ms, or -1 for one without an end}, or {} if it is free,
--           fence counter or 0, {}}   {2} foreign data
local held_by = holder()
if held_by == false then
  return {2}
end
local held = held_by and {held_by, redis.call('PTTL', KEYS[1])} or {}
return {held, KEYS[2] and redis.call('GET', KEYS[2]) or 0, {}}
