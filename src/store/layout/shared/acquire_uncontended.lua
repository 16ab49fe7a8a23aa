-- Gives the asker its lease if nobody waits and there is room; everything else is left to the rest
-- of the script, whose functions cost more: also fences, several permits, and a room in which a
-- lease has expired. Keys, arguments and result: see acquire.lua. Tokens and ends: see room.lua.
local share, most = ARGV[1]:match('^([rwp])1?/?(%d*):')
local used = share and ARGV[4] == '0' and redis.call('EXISTS', KEYS[1], KEYS[3])
-- If one of the two is there, it is the room, or this is empty.
local first = used == 1 and redis.pcall('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if used == 0 or first and first[1] then
  local time = redis.call('TIME')
  local instant = time[1] * 1000 + math.floor(time[2] / 1000)
  local fits = used == 0 or share ~= 'w' and tonumber(first[2]) >= instant
    and first[1]:match('^([rwp])[%d/]*:[%x-]+@[%w._-]+$') == share
    and (share == 'r' or redis.call('ZCARD', KEYS[1]) < tonumber(most))
  if fits then
    -- In this order for the reason that `put` gives.
    if used == 1 then
      redis.call('PEXPIRE', KEYS[1], math.max(ARGV[2], redis.call('PTTL', KEYS[1])))
    end
    redis.call('ZADD', KEYS[1], 'GT', instant + ARGV[2], ARGV[1])
    if used == 0 then
      redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
    return {1, 0, 0}
  end
end
