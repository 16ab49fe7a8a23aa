-- Acquires a lock that holds its deadline, also if a holder's deadline has passed, or says how long
-- it is held.
--
-- KEYS  1 the lock   2 our mark
-- ARGV  1 token   2 lease (ms)
--       3 whether a lock that is already marked with the token is ours (0 or 1)
-- Result  {1, 0, 0} granted   {0, rest until the deadline in ms} refused   {2} foreign data
local value, now, length = deadline(), clock(), tonumber(ARGV[2])
if value == false then
  return {2}
end
local held = value and not has_passed(value, now)
local mine = held and ARGV[3] == '1' and is_ours(value, ARGV[1])
if held and not mine then
  return {0, rest(value, now)}
end
if mine then
  -- The whole lease again, but never an earlier end: this may be a late copy, and the lease may
  -- have been extended since.
  length = math.max(length, rest(value, now))
end
-- Written even if the end does not move: a replica refuses the write, and so cannot say that the
-- lease is ours (R35).
write(ARGV[1], now, length)
return {1, 0, 0}
