-- Enters the queue of a lock that has no room for the asker, and says how long it is held. The rest
-- is in acquire.lua, and so are keys, arguments and result.
local function refuse()
  local inbox = ARGV[5]
  local hears = inbox and heard(inbox) or 0
  -- At the first attempt there is no entry yet. A waiter that comes back from a condition has asked
  -- before, so its attempt is not the first.
  local entry = inbox and ARGV[6] ~= '1' and look(token)
  -- A waiter that cannot be reached gets no place: it polls. A waiter that has a place keeps it:
  -- its inbox may only be reconnecting.
  if hears == 1 or entry then
    entry = entry or {at = '', condition = ''}
    entry.alive, entry.inbox, entry.state = clock() / 1000 + ARGV[7], inbox, ''
    entry.rest = ARGV[6] .. '|' .. ARGV[8] .. '|' .. ARGV[4]
    enter(token, entry)
  end
  return {0, left(token), hears}
end

if not is_mine and not fits(token) then
  return refuse()
end
