-- The common part of the scripts that look at the queue of a plain lock, in front of each of them.
--
-- A waiter is an entry in two keys in the lock's slot: in the queue, a sorted set, its token by
-- arrival (µs, see `arrival`); in the waiters, a hash, this text, with times by the server's clock:
--   "alive until (ms)|attempt|first lease (ms)|fences|inbox|state|since|condition"
-- A condition has a line, the same two keys of its own. The state:
--   ''        it has asked by itself;
--   a number  it was notified, and has not asked yet: until this time (ms) it counts anyway. It
--             came from `condition`, and had waited there `since` (µs);
--   'silent'  in a line: it was notified once, and did not ask.
-- `owed`, a hash, has the notifications that are not used up: under the token of the notified
-- waiter, "given at (µs)|condition". The first command of the lease that a notification leads to
-- uses it up: an extend or a release, or another wait or notification. The field '' is there as
-- long as anything is owed, and has the state of the whole:
--   "next review (ms)|number of the last notification|how many it woke|token of the notifier"

local lock, counter, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local stem = queue:sub(1, -6)
local owed = stem .. 'owed'
-- How long a notified waiter may take to ask (ms).
local TIME_TO_ASK = 1000

-- The server's clock in µs, the same for all of a script.
local instant
local function clock()
  if not instant then
    local now = redis.call('TIME')
    instant = now[1] * 1000000 + now[2]
  end
  return instant
end

local function whole(number)
  return string.format('%.0f', number)
end

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
  redis.call('SET', counter, whole(fence), 'PX', '2592000000')
  return whole(fence), count
end

-- Whether this inbox has a subscriber on this very server (R21); nil if this user may not ask.
local ears, may_ask = {}, true
local function listens(inbox)
  if ears[inbox] == nil and may_ask then
    local counted = redis.pcall('PUBSUB', 'NUMSUB', inbox)
    may_ask = not counted.err
    if may_ask then
      ears[inbox] = counted[2] > 0
    end
  end
  return ears[inbox]
end

-- The same for a result: 0 or 1, and 2 if this user may not ask.
local function heard(inbox)
  local hears = listens(inbox)
  return hears == nil and 2 or hears and 1 or 0
end

-- Publishes a message to a waiter. Attempt 0 is a hint: the waiter checks again. Result: whether
-- this user may publish.
local function tell(inbox, attempt, fence, count, token)
  local message = table.concat({attempt, fence, count, token, lock}, ' ')
  return type(redis.pcall('PUBLISH', inbox, message)) == 'number'
end

-- The arrival of a new waiter at the end of a line: now, but later than the last one even if the
-- clock went back.
local function arrival(line)
  local last = redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')[2]
  return math.max(clock(), (tonumber(last) or 0) + 1)
end

-- Makes a key last for at least `life` ms more.
local function outlast(key, life)
  if redis.call('PTTL', key) < life then
    redis.call('PEXPIRE', key, whole(life))
  end
end

-- An entry, or nil.
local function look(entries, token)
  local text = redis.call('HGET', entries, token) or ''
  local alive, rest, inbox, state, since, condition =
    text:match('^(%d+)|(%d+|%d+|%d+)|([^|]*)|([^|]*)|(%d*)|(.*)$')
  return alive and {
    alive = tonumber(alive), rest = rest, inbox = inbox,
    state = state, unasked = tonumber(state), since = since, condition = condition,
  }
end

-- Whether this time (ms) is over, or so far ahead that the clock must have been set back since: no
-- time that is given to this function was more than a second ahead when it was written.
local function is_over(time)
  local now = clock() / 1000
  return time < now or time > now + 2000
end

-- Whether a notified waiter has not asked in time.
local function is_late(entry)
  return entry.unasked and is_over(entry.unasked)
end

-- Writes an entry, at its old place or at the end, or at the place of arrival `since`. The keys
-- expire when nobody waits any more, even if all waiters died.
local function enter(line, entries, token, entry, since)
  local text = {
    whole(entry.alive), entry.rest, entry.inbox,
    entry.state or '', entry.since or '', entry.condition or '',
  }
  local life = math.max(entry.alive - clock() / 1000, 1) * 2
  redis.call('HSET', entries, token, table.concat(text, '|'))
  outlast(entries, life)
  if since or not redis.call('ZSCORE', line, token) then
    redis.call('ZADD', line, whole(since or arrival(line)), token)
  end
  outlast(line, life)
end

local function leave(line, entries, token)
  redis.call('ZREM', line, token)
  redis.call('HDEL', entries, token)
end

-- A waiter that has the lock has sent a command: its notification is used up.
local function settle(token)
  if redis.call('HDEL', owed, token) == 1 and redis.call('HLEN', owed) == 1 then
    redis.call('DEL', owed)
  end
end

-- The functions for conditions. Made only when they are needed, because making functions costs as
-- much as some commands.
local made
local function conditions()
  if made then
    return made
  end

  local function line_of(condition)
    local its = stem .. 'condition:' .. condition
    return its .. ':queue', its .. ':waiters'
  end

  -- For each condition: the place in its line up to which this script has looked. The waiters left
  -- before it are deaf or silent, and stay so: a waiter that goes back to the line is silent. So
  -- one script looks at each waiter of a lost host once, not once for each notification.
  local unseen = {}

  -- The conditions with a waiter that was notified, is alive, and has not asked yet. Looked up once
  -- in a script: later this may name a condition too many, and then the next review looks again.
  local unasked

  -- Moves the first waiters of a condition, at most `most`, to the end of the lock's queue. Only
  -- those that waited there when the notification was `given`: first those that listen and did not
  -- fail to ask before; then, unless `sure`, the others that are alive. Result: how many.
  local function move(condition, most, given, sure)
    local line, entries = line_of(condition)
    local now, moved = clock() / 1000, 0
    for _, all in ipairs(sure and {false} or {false, true}) do
      local from, tokens = not all and unseen[condition] or '-inf', nil
      repeat
        tokens = redis.call('ZRANGE', line, from, '(' .. given,
                            'BYSCORE', 'LIMIT', 0, 16, 'WITHSCORES')
        for at = 1, #tokens, 2 do
          local token, entry = tokens[at], look(entries, tokens[at])
          if moved == most then
            break
          elseif not entry or entry.alive < now then
            leave(line, entries, token)
          elseif all or (entry.state == '' and listens(entry.inbox)) then
            -- A server that is out of memory refuses the first of these writes, and then nothing
            -- has been done.
            redis.call('HSET', owed, token, given .. '|' .. condition)
            -- As long as a waiter of this line may come and review it.
            outlast(owed, math.max((entry.alive - now) * 2, redis.call('PTTL', line), 1))
            entry.state = whole(now + TIME_TO_ASK)
            entry.since, entry.condition = whole(tokens[at + 1]), condition
            enter(queue, waiters, token, entry)
            leave(line, entries, token)
            if listens(entry.inbox) then
              tell(entry.inbox, 0, 0, 0, token)
            end
            moved = moved + 1
          end
          -- The waiter is gone, or keeps its place.
          from = '(' .. whole(tokens[at + 1])
        end
      until #tokens == 0 or moved == most
      if not all then
        unseen[condition] = from
      end
    end
    if unasked and moved > 0 then
      unasked[condition] = true
    end
    return moved
  end

  -- Passes a waiter's notification on. Result: whether another waiter has it now; nil if the server
  -- is out of memory.
  local function pass_on(token, sure)
    local given, condition = (redis.call('HGET', owed, token) or ''):match('^(%d+)|(.*)$')
    if not given then
      return false
    end
    local ok, moved = pcall(move, condition, 1, given, sure)
    if not ok then
      return nil
    end
    if moved > 0 then
      redis.call('HDEL', owed, token)
    end
    return moved > 0
  end

  -- Whether a waiter of the condition was notified and has not asked yet: it may go back there.
  local function may_come_back(condition)
    if not unasked then
      unasked = {}
      for _, token in ipairs(redis.call('HKEYS', owed)) do
        local entry = token ~= '' and look(waiters, token)
        if entry and entry.unasked and entry.alive >= clock() / 1000 then
          unasked[entry.condition] = true
        end
      end
    end
    return unasked[condition]
  end

  -- A waiter will not come. Its notification passes on, or ends if nobody is left who waited when
  -- it was given.
  local function drop(token)
    leave(queue, waiters, token)
    local passed = pass_on(token)
    local condition = passed == false
      and (redis.call('HGET', owed, token) or ''):match('^%d+|(.*)$')
    if passed or (passed == false and not (condition and may_come_back(condition))) then
      settle(token)
    end
  end

  -- A notified waiter does not ask: it goes back to where it waited, and another waiter is notified
  -- in its place. If there is no other, it keeps its notification and its place here. Result:
  -- whether it went back.
  local function take_back(token, entry, sure)
    if not pass_on(token, sure) then
      return false
    end
    leave(queue, waiters, token)
    local line, entries = line_of(entry.condition)
    local silent = {alive = entry.alive, rest = entry.rest, inbox = entry.inbox, state = 'silent'}
    enter(line, entries, token, silent, entry.since)
    return true
  end

  -- Reviews the notifications of waiters that are gone or do not ask, but not that of `asking`,
  -- which is here. The more is owed, the less often this is done.
  local function review(asking)
    local due, rest = (redis.call('HGET', owed, '') or ''):match('^(%d+)(|.*)$')
    local now = due and clock() / 1000
    if not due or not is_over(tonumber(due)) then
      return
    end
    local size = redis.call('HLEN', owed)
    redis.call('HSET', owed, '', whole(now + math.min(size, 1000)) .. rest)
    local holder, debts = redis.call('GET', lock), redis.call('HKEYS', owed)
    for _, token in ipairs(debts) do
      if token ~= '' and token ~= holder and token ~= asking then
        local entry = look(waiters, token)
        if not entry or entry.alive < now then
          drop(token)
        elseif is_late(entry) then
          take_back(token, entry)
        end
      end
    end
  end

  made = {
    line_of = line_of, move = move, pass_on = pass_on,
    drop = drop, take_back = take_back, review = review,
  }
  return made
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
  leave(queue, waiters, token)
  if tell(entry.inbox, attempt, fence, count, token) then
    return true
  end
  -- It stays the first.
  local next = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2]
  enter(queue, waiters, token, entry, next and tonumber(next) - 1)
  return false
end

-- Serves the queue of a lock that is, or is about to be, free. `asking`: the token that asks for it
-- right now, or ''.
-- Result: 'served', the first waiter that is alive and listens is the owner; 'asking', nobody is
-- before the asker; 'nobody'. In the last two cases the lock may still hold an old token: the
-- caller sets or deletes it.
local function serve(asking)
  local owes = redis.call('EXISTS', owed) == 1
  if owes then
    -- A server that is out of memory refuses the review, and has to release all the same.
    pcall(conditions().review, asking)
  end
  local from, now = 0, clock() / 1000
  while true do
    local tokens = redis.call('ZRANGE', queue, from, from + 15)
    if #tokens == 0 then
      return 'nobody'
    end
    for _, token in ipairs(tokens) do
      if token == asking then
        return 'asking'
      end
      local entry = look(waiters, token)
      if not entry or entry.alive < now then
        conditions().drop(token)
      else
        local hears = listens(entry.inbox)
        local late = is_late(entry)
        if hears == nil then
          return 'nobody'
        elseif hears and not late then
          local ok, granted = pcall(grant, token, entry)
          return ok and granted and 'served' or 'nobody'
        elseif not (entry.unasked and conditions().take_back(token, entry, not late)) then
          -- A deaf waiter that has asked by itself keeps its place, as any other: it may only have
          -- left its loop. But it may also be dead: so its notification passes on if another waiter
          -- is there.
          if owes and not entry.unasked then
            conditions().pass_on(token, true)
          end
          from = from + 1
        end
      end
    end
  end
end

-- Ends a hold: the lock goes to the first waiter that is alive and listens, or else to nobody.
local function hand_over_or_delete()
  if despite_foreign(serve, '') ~= 'served' then
    redis.call('DEL', lock)
  end
end

-- Gives the asker the lock, which is free or already its own. Returns the result of the script.
local function take(token, lease, wanted, mine)
  local fence, count = reserve(tonumber(wanted))
  if not fence then
    return {2}
  end
  -- The whole lease again, but never an earlier end: this may be a late copy, and the lease may
  -- have been extended since. Written even if the end does not move: a replica refuses the write,
  -- and so cannot say that the lease is ours (R35).
  redis.call('SET', lock, token, 'PX', mine and math.max(redis.call('PTTL', lock), lease) or lease)
  leave(queue, waiters, token)
  -- Its notification is not used up yet: this answer may be lost, or come too late to count.
  return {1, fence, count}
end
