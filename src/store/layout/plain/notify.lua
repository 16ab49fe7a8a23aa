-- Moves waiters of a condition to the lock's queue, if the lock is ours.
--
-- KEYS  1 the lock   2 its fence counter   3 its queue   4 its waiters
-- ARGV  1 token   2 the condition's name   3 at most how many
--       4 the number of this notification under this token
-- Result  how many were moved, or -1 if the lock is not ours
if redis.call('TYPE', lock).ok ~= 'string' or redis.call('GET', lock) ~= ARGV[1] then
  return -1
end
-- This lease may itself have been handed over after a notification.
settle(ARGV[1])
local last, woken, by = (redis.call('HGET', owed, '') or ''):match('^%d+|(%d+)|(%d+)|(.*)$')
if by == ARGV[1] and tonumber(last) >= tonumber(ARGV[4]) then
  -- Sent again, or a late copy.
  return tonumber(woken)
end
local of = conditions()
of.review('')
local moved = of.move(ARGV[2], tonumber(ARGV[3]), whole(arrival((of.line_of(ARGV[2])))))
if moved > 0 then
  redis.call('HSET', owed, '', table.concat({'0', ARGV[4], moved, ARGV[1]}, '|'))
end
return moved
