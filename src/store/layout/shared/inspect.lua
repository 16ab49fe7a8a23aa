-- Says who holds the lock: of several, the one whose lease ends last. Writes nothing.
--
-- KEYS  1 the lock
-- Result  {token, rest of the lease in ms}, or {} if nobody holds it
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
local rest = last[2] and last[2] - math.floor(clock() / 1000)
if not rest or rest < 0 then
  return {}
end
return {last[1]:match('^[^#]*'), rest}
