-- Says who holds a plain lock.
--
-- KEYS  1 the lock
-- Result  {token, rest of the lease in ms, or -1 for one without an end}, or {} if it is free
local holder = redis.call('GET', KEYS[1])
if not holder then
  return {}
end
return {holder, redis.call('PTTL', KEYS[1])}
