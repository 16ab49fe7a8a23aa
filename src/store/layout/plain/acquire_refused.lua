-- Acquires a plain lock, or enters its queue and says how long it is held. Here: another holds it.
-- The rest is in acquire.lua.
--
-- KEYS  see queue.lua
-- ARGV  1 token   2 lease (ms)   3 whether a key that already holds the token is ours (0 or 1)
--       4 how many fences to reserve, 0 for none; and for a waiter that queues:
--       5 inbox   6 attempt   7 how long an entry counts as alive (ms)
--       8 first lease of a hand-off (ms)
-- Result  {1, last fence or 0, how many} granted
--         {0, rest of the lease in ms, whether the waiter can be reached (0 or 1; 2: this user may
--           not ask)} refused   {2} foreign data
local token, inbox = ARGV[1], ARGV[5]
local function refuse()
  local hears = inbox and heard(inbox) or 0
  -- A waiter that was notified in a condition has asked before.
  local entry = inbox and ARGV[6] ~= '1' and look(token)
  -- A waiter that cannot be reached gets no place: it polls. A waiter that has a place keeps it:
  -- its inbox may only be reconnecting.
  if hears == 1 or entry then
    entry = entry or {at = '', condition = ''}
    entry.alive, entry.inbox, entry.state = clock() / 1000 + ARGV[7], inbox, ''
    entry.rest = ARGV[6] .. '|' .. ARGV[8] .. '|' .. ARGV[4]
    enter(token, entry)
  end
  return {0, redis.call('PTTL', lock), hears}
end

local holder = redis.pcall('GET', lock)
if type(holder) == 'table' then
  return holder.err:find('WRONGTYPE', 1, true) and {2} or holder
end
local mine = holder == token and ARGV[3] == '1'
if holder and not mine then
  return refuse()
end
