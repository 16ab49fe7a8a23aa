-- Moves our deadline, if the lock still holds it. Never creates one.
--
-- KEYS  1 the lock   2 our mark
-- ARGV  1 token   2 the new rest of the lease in ms   3 whether also to an earlier end (0 or 1)
-- Result  1 ours   0 not ours
local value, now, length = deadline(), clock(), tonumber(ARGV[2])
if not is_ours(value, ARGV[1]) then
  return 0
end
if ARGV[3] ~= '1' then
  length = math.max(length, rest(value, now))
end
-- Written even if the end does not move: a replica refuses the write, and so cannot say that the
-- lease is ours (R35).
write(ARGV[1], now, length)
return 1
