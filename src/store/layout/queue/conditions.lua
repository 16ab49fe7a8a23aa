-- Conditions: behind queue.lua, in front of the scripts that notify, or pass a notification on.

-- How long a notified waiter may take to ask (ms).
local TIME_TO_ASK = 1000

-- Publishes a message to a waiter. Attempt 0 is a hint: the waiter checks again. Result: whether
-- this user may publish.
local function tell(inbox, attempt, fence, count, token)
  local message = table.concat({attempt, fence, count, token, KEYS[1]}, ' ')
  local publish = inbox:find('{', 1, true) and 'SPUBLISH' or 'PUBLISH'
  return type(redis.pcall(publish, inbox, message)) == 'number'
end

-- The members of a condition's line begin with this. The arrival of a waiter (16 digits), '|', and
-- its token follow. ':' comes after all digits, so the members are those between `line` and
-- `line:`. The waiters have a field of this name, too: see wait.lua.
local function line_of(condition)
  return #condition .. ':' .. condition .. ':'
end

-- Takes a waiter out of a line. Its entry stays.
local function leave_line(line, member)
  redis.call('ZREM', KEYS[5], member)
  local rest = redis.call('ZRANGE', KEYS[5], '[' .. line, '(' .. line .. ':',
                          'BYLEX', 'LIMIT', 0, 1)
  if #rest == 0 then
    redis.call('HDEL', KEYS[4], line)
  end
end

-- The first living waiter of a line that came before `given`: its member, its token, and its entry.
-- Takes the dead ones before it out of the line.
local function first_of(line, given)
  while true do
    local member = redis.call('ZRANGE', KEYS[5], '[' .. line, '(' .. line .. given,
                              'BYLEX', 'LIMIT', 0, 1)[1]
    if not member then
      return
    end
    local token = member:sub(#line + 18)
    local entry = look(token)
    local waits = entry and entry.state == 'line'
    if waits and entry.alive >= clock() / 1000 then
      return member, token, entry
    end
    leave_line(line, member)
    if waits then
      redis.call('HDEL', KEYS[4], token)
    end
  end
end

-- Moves the first living waiters of a condition to the end of the queue, at most `most`, and only
-- those that waited when the notification was `given`. Result: how many.
local function notify(condition, most, given)
  local line, moved = line_of(condition), 0
  while moved < most do
    local member, token, entry = first_of(line, given)
    if not member then
      break
    end
    -- A server that is out of memory refuses no write after this one.
    leave_line(line, member)
    entry.state, entry.at = math.floor(clock() / 1000) + TIME_TO_ASK, given
    enter(token, entry)
    if heard(entry.inbox) == 1 then
      tell(entry.inbox, 0, 0, 0, token)
    end
    moved = moved + 1
  end
  return moved
end

