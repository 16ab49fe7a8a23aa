-- Acquires a plain lock that is free and that nobody waits for; everything else is left to the rest
-- of the script, whose functions cost more. Keys, arguments and result: see acquire.lua.
if redis.call('EXISTS', KEYS[1], KEYS[3]) == 0 then
  if ARGV[4] == '0' then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return {1, 0, 0}
  end
  local now = redis.call('TIME')
  local clock, last = now[1] * 1000000 + now[2], redis.call('GET', KEYS[2])
  -- As in `reserve`. A counter that is not behind the clock, or is not a number, is left to
  -- `reserve`.
  local gap = not last and 1 or (last:find('^%d+$') and clock - last or 0)
  if gap > 0 then
    -- Written first: a server without memory refuses it, and then nothing has been done. The number
    -- has at most 16 digits: the server writes it out in full, which costs less than
    -- `string.format`.
    redis.call('SET', KEYS[2], clock, 'PX', '2592000000')
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return {1, clock, math.min(ARGV[4], gap, 1024)}
  end
end
