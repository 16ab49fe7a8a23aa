-- Releases a lease that is ours if nobody waits; everything else is left to the rest of the script,
-- whose functions cost more: also several permits, and a lease that has expired. Keys, arguments
-- and result: see release.lua.
if ARGV[1]:find('^[rwp]1?/?%d*:') and redis.call('EXISTS', KEYS[3]) == 0 then
  local time, ends = redis.call('TIME'), redis.pcall('ZSCORE', KEYS[1], ARGV[1])
  local instant = time[1] * 1000 + math.floor(time[2] / 1000)
  if type(ends) == 'string' and tonumber(ends) >= instant then
    return redis.call('ZREM', KEYS[1], ARGV[1])
  end
end
