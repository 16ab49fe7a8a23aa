-- Serving the queue: behind queue.lua, in front of the scripts that hand the lock on.

-- How long a notified waiter may take to ask (ms).
local TIME_TO_ASK = 1000

-- Runs a step that may meet somebody else's data under a companion key. Such a key must not keep a
-- lock from being released: only the waiters suffer from it. Result: that of the step.
local function despite_foreign(step, ...)
  local ok, result = pcall(step, ...)
  if ok then
    return result
  end
  local said = type(result) == 'table' and result.err or tostring(result)
  if not said:find('WRONGTYPE', 1, true) then
    error(result)
  end
end

-- A block of new fences (R16): its last fence, and how many it has, at most `wanted`. All are
-- greater than the counter, and the last is the server's clock in µs: so they grow even after the
-- counter was lost. Only if the clock went back, the counter is ahead of it, and grows by one. The
-- first block after a loss is a single fence: a longer block reaches back in time, perhaps to
-- before a fence that was given out. The limit of 1,024 has the same reason: a counter that was set
-- back, not lost, looks like one that nobody used for a while. Nil if the counter is somebody
-- else's data. All fences stay below 2^53. The counter outlives its lock by 30 days.
local function reserve(wanted)
  if wanted == 0 then
    return '0', 0
  end
  local last, fence, count = redis.call('GET', counter), clock(), 1
  if last then
    local known = last:find('^%d+$') and tonumber(last)
    if not known or known > 9007194959773696 then
      return nil
    end
    fence = math.max(known + 1, fence)
    count = math.min(wanted, fence - known, 1024)
  end
  redis.call('SET', counter, fence, 'PX', '2592000000')
  return string.format('%.0f', fence), count
end

-- Publishes a message to a waiter. Attempt 0 is a hint: the waiter checks again. Result: whether
-- this user may publish.
local function tell(inbox, attempt, fence, count, token)
  local message = table.concat({attempt, fence, count, token, lock}, ' ')
  local publish = inbox:find('{', 1, true) and 'SPUBLISH' or 'PUBLISH'
  return type(redis.pcall(publish, inbox, message)) == 'number'
end

-- Takes a waiter out of the queue.
local function leave(token)
  redis.call('HDEL', waiters, token)
  redis.call('ZREM', queue, token)
end

-- The members of a condition's line begin with this. The arrival of a waiter (16 digits), '|', and
-- its token follow. The waiters have a field of this name, too: see wait.lua.
local function line_of(condition)
  return #condition .. ':' .. condition .. ':'
end

-- Takes a waiter out of a line. Its entry stays.
local function leave_line(line, member)
  redis.call('ZREM', conditions, member)
  local rest = redis.call('ZRANGE', conditions, '[' .. line, '(' .. line .. ':',
                          'BYLEX', 'LIMIT', 0, 1)
  if #rest == 0 then
    redis.call('HDEL', waiters, line)
  end
end

-- The first living waiter of a line that came before `given`: its member, its token, and its entry.
-- Takes the dead ones before it out of the line.
local function first_of(line, given)
  while true do
    local member = redis.call('ZRANGE', conditions, '[' .. line, '(' .. line .. given,
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
      redis.call('HDEL', waiters, token)
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

-- A waiter does not come, or not now: its notification passes on, to one that waited when it was
-- given. A waiter that stays forgets it, so that it passes on once.
local function pass_on(token, entry, stays)
  if entry.condition ~= '' then
    notify(entry.condition, 1, entry.at)
    if stays then
      entry.at, entry.condition = '', ''
      write(token, entry)
    end
  end
end

-- Makes one waiter the owner. The message comes last: whatever may be refused, by a server that is
-- out of memory or for a missing permission, is refused before a message announces the lock. The
-- number of receivers is not checked: subscribers at a replica receive it, too.
local function grant(token, entry)
  local attempt, first, block = entry.rest:match('^(%d+)|(%d+)|(%d+)$')
  local fence, count = reserve(tonumber(block))
  if not fence then
    return false
  end
  redis.call('SET', lock, token, 'PX', first)
  leave(token)
  if tell(entry.inbox, attempt, fence, count, token) then
    return true
  end
  -- It stays the first.
  local next = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2]
  enter(token, entry, next and next - 1)
  return false
end

-- Serves the queue of a lock that is, or is about to be, free. `asking`: the token that asks for it
-- right now, or ''. `holder`: the token that is about to lose the lock, if there is one: it is in
-- the queue if a script that looks at no queue has granted the lock (acquire_alone.lua).
-- Result: 'served', the first waiter that can have the lock is the owner; 'asking', nobody is
-- before the asker; 'nobody'. In the last two cases the lock may still hold an old token: the
-- caller sets or deletes it.
local function serve(asking, holder)
  local passed, now = 0, clock() / 1000
  while true do
    local token = redis.call('ZRANGE', queue, passed, passed)[1]
    if not token then
      return 'nobody'
    elseif token == asking then
      return 'asking'
    end
    local entry = look(token)
    if token == holder then
      leave(token)
    elseif not entry or entry.alive < now then
      leave(token)
      -- Whatever may keep the notification from passing on, the lock has to be released.
      if entry then
        pcall(pass_on, token, entry)
      end
    else
      local hears, unasked = heard(entry.inbox), tonumber(entry.state)
      -- No such time was further ahead when it was written. If it is, the clock was set back since.
      local is_late = unasked and (unasked < now or unasked > now + TIME_TO_ASK)
      if hears == 2 then
        return 'nobody'
      elseif hears == 1 and not is_late then
        local ok, granted = pcall(grant, token, entry)
        return ok and granted and 'served' or 'nobody'
      end
      -- It keeps its place: its inbox may only be reconnecting.
      pcall(pass_on, token, entry, true)
      passed = passed + 1
    end
  end
end

-- Ends the hold of a token: the lock goes to the first waiter that can have it, or else to nobody.
local function hand_over_or_delete(holder)
  if despite_foreign(serve, '', holder) ~= 'served' then
    redis.call('DEL', lock)
  end
end
