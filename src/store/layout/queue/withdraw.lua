-- Undoes what attempts with a token may have done: leaves the condition or the queue, passes the
-- waiter's notification on, and releases the lease if there is one. Then the queue is served, also
-- without a lease: others may have waited behind this waiter for room that they fit in.
--
-- KEYS  see keys.lua
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
return hand_over(token)
