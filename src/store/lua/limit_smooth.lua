-- Takes permits of a limit that refills steadily (GCRA, in the form of a leaking level), if they fit.
--
-- KEYS  1 the level: permits in use, a space, and the server's time in µs at which so many were in use
-- ARGV  1 permits that may be in use at once   2 the time in which so many come back, in µs   3 permits wanted, 0 to look only
-- Result  {1, permits left, 0} taken   {0, permits left, µs until the wanted ones are back} refused   {2} foreign data
local capacity, window, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local level, since = 0, now
local state = redis.call('GET', KEYS[1])
if state then
  level, since = string.match(state, '^([%d.e+-]+) (%d+)$')
  level, since = tonumber(level), tonumber(since)
  if not (level and since and level >= 0) then
    return {2}
  end
  -- Another process may allow more at once than this one.
  level = math.min(level, capacity)
end

local function keep(level)
  -- Gone when nothing is in use any more. All digits: a rounded level would give permits away.
  redis.call('SET', KEYS[1], string.format('%.17g %.0f', level, now), 'PX', math.ceil(level * window / capacity / 1000))
end

level = math.max(level - math.max(now - since, 0) * capacity / window, 0)
local excess = level + wanted - capacity
if excess > 0 then
  if since > now then
    -- The clock was set back. Counted from now on: else nothing would come back until the clock has caught up.
    keep(level)
  end
  return {0, math.floor(capacity - level), math.ceil(excess * window / capacity)}
end
if wanted > 0 then
  level = level + wanted
  keep(level)
end
return {1, math.floor(capacity - level), 0}
