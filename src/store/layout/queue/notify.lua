-- Moves waiters of a condition to the lock's queue, if the lock is ours.
--
-- KEYS  see keys.lua
-- ARGV  1 token   2 the condition's name   3 at most how many
-- Result  how many were moved, or -1 if the lock is not ours
if not mine(ARGV[1]) then
  return -1
end
return notify(ARGV[2], tonumber(ARGV[3]), arrival_in(line_of(ARGV[2])))
