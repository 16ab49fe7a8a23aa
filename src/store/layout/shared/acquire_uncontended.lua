-- Gives the asker its lease if nobody waits; everything else is left to the rest of the script,
-- whose functions cost more.
if (is_mine or fits(token)) and redis.call('EXISTS', KEYS[3]) == 0 then
  return take(token, ARGV[2], ARGV[4])
end

