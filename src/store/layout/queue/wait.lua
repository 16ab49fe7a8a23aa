-- Enters a condition and releases the lock in one step, so that no notification can come between
-- the two. Later calls are signs of life: they keep the place, and say what has become of it.
--
-- A notification is lost with a waiter that dies after the lock was handed to it. So, every 10 s,
-- the next waiter of the line that asks wakes for no reason. The field of the line among the
-- waiters says when that is due (ms).
--
-- KEYS  see keys.lua
-- ARGV  1 the waiter's token   2 lease (ms)   3 how many fences to reserve, 0 for none
--       4 inbox   5 attempt   6 how long an entry counts as alive (ms)
--       7 first lease of a hand-off (ms)   8 the condition's name
--       9 the token whose lease is to be released, or ''
--       10 whether to leave the condition (0 or 1)
-- Result  {0, whether it can be reached (0 or 1; 2: the server does not say)} waits
--         {1, last fence or 0, how many} woke, and is the owner   {2} foreign data
--         {3} is nowhere, and so wakes   {4} the lease to be released is not ours
--         {5, rest of the lease in ms, whether it can be reached} woke, and queues for the lock
--         {6} has left the condition
local token, release = ARGV[1], ARGV[9]
if foreign then
  return foreign
end
if mine(token) then
  return take_turn(token, ARGV[2], ARGV[3])
end
local NET = 10000
local line, now, known = line_of(ARGV[8]), clock() / 1000, look(token)
-- The lock of somebody else may have an empty value.
if not known and (release == '' or not mine(release)) then
  return {release == '' and 3 or 4}
end
if not known then
  -- Takes dead waiters from the head of the line: perhaps nobody ever notifies this condition.
  first_of(line, ':')
end
local entry = known or {state = 'line', at = arrival_in(line), condition = ARGV[8]}
entry.alive, entry.inbox = now + ARGV[6], ARGV[4]
entry.rest = table.concat({ARGV[5], ARGV[7], ARGV[3]}, '|')
if entry.state == 'line' then
  local member = line .. entry.at .. '|' .. token
  if known and ARGV[10] == '1' then
    leave_line(line, member)
    leave(token)
    return {6}
  end
  local due = tonumber(redis.call('HGET', KEYS[4], line) or '')
  -- A time that is further ahead was written before the clock was set back.
  local wakes = known and (not due or due <= now or due > now + NET)
  if wakes or not due then
    redis.call('HSET', KEYS[4], line, math.floor(now) + NET)
  end
  if not wakes then
    write(token, entry)
    local is_new = redis.call('ZADD', KEYS[5], 0, member) == 1
    outlast(entry, is_new and KEYS[5])
    if not known then
      hand_over(release)
    end
    return {0, heard(ARGV[4])}
  end
  leave_line(line, member)
  entry.at, entry.condition = '', ''
end
entry.state = ''
enter(token, entry)
if serve(token) and fits(token) then
  return take_turn(token, ARGV[2], ARGV[3])
end
return {5, left(token), heard(ARGV[4])}
