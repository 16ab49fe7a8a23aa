-- Takes permits of a limit that refills steadily (GCRA, in the form of a leaking level): what is
-- there now, or, for a caller that waits, what comes back next.
--
-- KEYS  1 the level: permits in use, promised ones included; a space; the server's time in µs when
--         that many were in use; a space; and the time in µs in which one permit comes back
-- ARGV  1 permits that may be in use at once   2 the time in which that many come back, in µs
--       3 permits wanted, 0 to look only
--       4 how long the caller would wait for them, in µs
-- Result  {1, permits left, µs until they may be used, µs until all are back} taken
--         {0, permits left, µs until the wanted ones are back, µs until all are back} refused
--         {2} foreign data
local capacity, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local wanted, longest_wait = tonumber(ARGV[3]), tonumber(ARGV[4])
local pace = window / capacity
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local level, since = 0, now
local state = redis.call('GET', KEYS[1])
if state then
  local its_pace
  level, since, its_pace = string.match(state, '^([%d.e+-]+) (%d+) ([%d.e+-]+)$')
  level, since, its_pace = tonumber(level), tonumber(since), tonumber(its_pace)
  -- No level of ours takes longer to come back than the longest window and the longest wait
  -- together.
  if not (level and since and its_pace and level >= 0 and its_pace > 0
          and level * its_pace < 9007199254740992) then
    return {2}
  end
  if its_pace ~= pace then
    -- Taken under another count or window. These permits come back when their taker said: neither a
    -- small limit nor a large one makes room sooner for the other.
    level = level * its_pace / pace
  end
end

local function keep(level)
  -- The key expires when nothing is in use any more. Written with all digits: a rounded level would
  -- give permits away.
  redis.call('SET', KEYS[1], string.format('%.17g %.0f %.17g', level, now, pace),
             'PX', math.ceil(level * window / capacity / 1000))
end

level = math.max(level - math.max(now - since, 0) * capacity / window, 0)
local left = math.max(math.floor(capacity - level), 0)
local function reset(level)
  return math.ceil(level * window / capacity)
end
if wanted == 0 then
  return {1, left, 0, reset(level)}
end
local excess = level + wanted - capacity
local wait = math.max(math.ceil(excess * window / capacity), 0)
if wait > longest_wait then
  if since > now then
    -- The clock was set back. Time counts from now on: otherwise nothing would come back until the
    -- clock has caught up.
    keep(level)
  end
  return {0, left, wait, reset(level)}
end
-- Promised permits count from now on, and later callers come after them.
keep(level + wanted)
return {1, math.max(math.floor(capacity - level - wanted), 0), wait, reset(level + wanted)}
