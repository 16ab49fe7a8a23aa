-- Acquires a plain lock, or says how long it is held.
--
-- KEYS  1 the lock   2 its fence counter
-- ARGV  1 token   2 lease in ms   3 whether a key that holds the token already is ours (0 or 1)
--       4 how many fences to reserve, 0 for none   5 life of the fence counter in ms
-- Result  {1, last fence or nil} granted   {0, rest of the lease in ms} refused   {2} foreign data
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'string' then
  return {2}
end
local holder = redis.call('GET', KEYS[1])
if holder and not (holder == ARGV[1] and ARGV[3] == '1') then
  return {0, redis.call('PTTL', KEYS[1])}
end
local fence = false
local block = tonumber(ARGV[4])
if block > 0 then
  -- max(last + block, the server's clock in µs): grows also after the counter was lost. Both stay below 2^53.
  local now = redis.call('TIME')
  fence = now[1] * 1000000 + now[2]
  local last = tonumber(redis.call('GET', KEYS[2]) or 0) or 0
  fence = string.format('%.0f', math.max(last + block, fence))
  redis.call('SET', KEYS[2], fence, 'PX', ARGV[5])
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, fence}
