-- Extends our lease, if the lock still holds it. Never creates one, and never moves its end to an
-- earlier time.
--
-- KEYS  1 the lock   2 our mark
-- ARGV  1 token   2 the new rest of the lease in ms
-- Result  1 ours   0 not ours
local value, now = deadline(), clock()
if not is_ours(value, ARGV[1]) then
  return 0
end
local length = math.max(tonumber(ARGV[2]), rest(value, now))
-- Written even if the end does not move: a replica refuses the write, and so cannot say that the
-- lease is ours (R35).
write(ARGV[1], now, length)
return 1
