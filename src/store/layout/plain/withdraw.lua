-- Undoes what attempts with a token may have done: leaves the condition and the queue, passes the
-- waiter's notification on, and releases the lock if the token holds it, which hands it to the
-- first waiter that listens.
--
-- KEYS  1 the lock   2 its fence counter   3 its queue   4 its waiters
-- ARGV  1 token   2 the condition that it may have entered, or ''
-- Result  1 released   0 not ours
local token = ARGV[1]
if ARGV[2] ~= '' then
  local line, entries = conditions().line_of(ARGV[2])
  despite_foreign(leave, line, entries, token)
end
despite_foreign(conditions().drop, token)
if redis.call('GET', lock) ~= token then
  return 0
end
hand_over_or_delete()
return 1
