-- Acquires a plain lock, or enters its queue and says how long it is held.
--
-- KEYS  1 the lock   2 its fence counter   3 its queue   4 its waiters
-- ARGV  1 token   2 lease (ms)   3 whether a key that already holds the token is ours (0 or 1)
--       4 how many fences to reserve, 0 for none; and for a waiter that queues:
--       5 inbox   6 attempt   7 how long an entry counts as alive (ms)
--       8 first lease of a hand-off (ms)
-- Result  {1, last fence or 0, how many} granted
--         {0, rest of the lease in ms, whether the waiter can be reached (0 or 1; 2: this user may
--           not ask)} refused   {2} foreign data
local token, inbox = ARGV[1], ARGV[5]
local kind = redis.call('TYPE', lock).ok
if kind ~= 'none' and kind ~= 'string' then
  return {2}
end
local holder = redis.call('GET', lock)
local mine = holder == token and ARGV[3] == '1'
if mine or (not holder and serve(token) ~= 'served') then
  return take(token, ARGV[2], ARGV[4], mine)
end
local hears = inbox and heard(inbox) or 0
-- A waiter that cannot be reached gets no place: it polls. A waiter that has a place keeps it: its
-- inbox may only be reconnecting.
if hears == 1 or (inbox and redis.call('ZSCORE', queue, token)) then
  local rest = table.concat({ARGV[6], ARGV[8], ARGV[4]}, '|')
  enter(queue, waiters, token, {alive = clock() / 1000 + ARGV[7], rest = rest, inbox = inbox})
end
return {0, redis.call('PTTL', lock), hears}
