-- Undoes what attempts with a token may have done: leaves the condition or the queue, passes the
-- waiter's notification on, and releases the lock if the token holds it, which hands it to the
-- first waiter that listens.
--
-- KEYS  see queue.lua
-- ARGV  1 token
-- Result  1 released   0 not ours
local token = ARGV[1]
despite_foreign(function()
  local entry = look(token)
  if entry and entry.state == 'line' then
    local line = line_of(entry.condition)
    leave_line(line, line .. entry.at .. '|' .. token)
  end
  leave(token)
  if entry and entry.state ~= 'line' then
    pass_on(token, entry)
  end
end)
if redis.call('GET', lock) ~= token then
  return 0
end
hand_over_or_delete(token)
return 1
