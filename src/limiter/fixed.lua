-- Takes permits of the present window, if they fit. A refused call takes nothing: the window does
-- not slide, the counter does not grow.
--
-- KEYS  1 the counter: a plain integer with a TTL, as INCR and EXPIRE leave it
-- ARGV  1 permits in a window   2 window in ms   3 permits wanted, 0 to look only
-- Result  {1, permits left, 0, µs until all permits are back} taken
--         {0, permits left, µs until the window ends, the same} refused   {2} foreign data
local capacity, window, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
-- Redis keeps a key through the whole last millisecond of its TTL; so this one is gone a window
-- after the millisecond in which it began.
local life = math.max(window - 1, 1)
local used = redis.call('GET', KEYS[1])
if not used then
  if wanted == 0 then
    return {1, capacity, 0, 0}
  end
  redis.call('SET', KEYS[1], ARGV[3], 'PX', life)
  return {1, capacity - wanted, 0, window * 1000}
end
-- Only a value that INCR accepts, and that Lua can compute with.
local is_count = used == '0' or string.match(used, '^%-?[1-9]%d*$')
if not is_count or math.abs(used) >= 9007199254740992 then
  return {2}
end
local rest = redis.call('PTTL', KEYS[1])
if rest < 0 or rest > window then
  -- Without an end: a process died between INCR and EXPIRE. With an end beyond a window: the clock
  -- was set back, or somebody gave another time. The window begins now: otherwise it would refuse
  -- for all of that time.
  redis.call('PEXPIRE', KEYS[1], life)
  rest = life
end
-- Other clients also count what they refuse.
local left = math.max(capacity - used, 0)
-- A millisecond that ends between the two looks at the clock makes this too long, and nothing makes
-- it too short.
local reset = math.min((rest + 1) * 1000 - redis.call('TIME')[2] % 1000, window * 1000)
if wanted > left then
  return {0, left, reset, reset}
end
if wanted > 0 then
  redis.call('INCRBY', KEYS[1], ARGV[3])
end
return {1, left - wanted, 0, reset}
