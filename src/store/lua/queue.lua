-- The common part of the scripts that free a plain lock, in front of each of them.
--
-- A waiter is an entry in two keys in the lock's slot: in the queue, a sorted set, its token by arrival (server clock, µs), and in
-- the waiters, a hash, "alive until (server clock, ms)|attempt|first lease (ms)|fences|inbox|condition". The last is empty unless the waiter
-- was in a condition and has been notified. A condition has the same two keys of its own.

local lock, counter, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local function clock()
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2]
end

local function whole(number)
  return string.format('%.0f', number)
end

-- The last of `block` new fences: max(last + block, the server's clock in µs), which grows also after the counter was
-- lost. Both stay below 2^53. 0 without fences. The counter outlives its lock by 30 days.
local function reserve(block)
  if block == 0 then
    return '0'
  end
  local last = tonumber(redis.call('GET', counter) or 0) or 0
  local fence = whole(math.max(last + block, clock()))
  redis.call('SET', counter, fence, 'PX', '2592000000')
  return fence
end

-- Enters, or keeps its place with the rest written anew. The keys are gone when nobody waits any more, also when everybody died.
local function enter(line, entries, token, arrival, alive, rest)
  redis.call('ZADD', line, 'NX', whole(arrival), token)
  redis.call('HSET', entries, token, whole(clock() / 1000 + alive) .. '|' .. rest)
  if redis.call('PTTL', line) < alive * 2 then
    redis.call('PEXPIRE', line, whole(alive * 2))
  end
  if redis.call('PTTL', entries) < alive * 2 then
    redis.call('PEXPIRE', entries, whole(alive * 2))
  end
end

local function leave(line, entries, token)
  redis.call('ZREM', line, token)
  redis.call('HDEL', entries, token)
end

-- What is left of an entry's life in ms, negative once it is over, and the rest of it: attempt, first lease, fences, inbox, condition.
local function look(entries, token, now)
  local entry = redis.call('HGET', entries, token) or ''
  local alive, attempt, first, block, inbox, condition = entry:match('^(%d+)|(%d+)|(%d+)|(%d+)|([^|]*)|(.*)$')
  return alive and alive - now or -1, attempt, first, block, inbox, condition
end

-- Tells a waiter something; whether anybody listens for it. Attempt 0 is a hint: to look again.
local function tell(inbox, attempt, fence, block, token)
  return redis.call('PUBLISH', inbox, table.concat({attempt, fence, block, token, lock}, ' ')) > 0
end

-- Moves the first waiters of a condition that are alive and listen, at most `most`, to the end of the lock's queue. With `deaf`, those
-- that do not listen come after them: one that is only opening its inbox looks by itself, and a notification must not be lost for that.
-- Result: how many.
local function notify(condition, most, deaf)
  local stem = queue:sub(1, -6) .. 'condition:' .. condition .. ':'
  local line, entries = stem .. 'queue', stem .. 'waiters'
  local arrival, from, moved = clock(), 0, 0
  for _, listening in ipairs(deaf and {true, false} or {true}) do
    from = 0
    while moved < most do
      local tokens = redis.call('ZRANGE', line, from, from + 15)
      if #tokens == 0 then
        break
      end
      for _, token in ipairs(tokens) do
        local life, attempt, first, block, inbox = look(entries, token, arrival / 1000)
        if life < 0 then
          leave(line, entries, token)
        elseif moved == most or (listening and not tell(inbox, 0, 0, 0, token)) then
          -- It keeps its place.
          from = from + 1
        else
          leave(line, entries, token)
          enter(queue, waiters, token, arrival + moved, life, table.concat({attempt, first, block, inbox, condition}, '|'))
          moved = moved + 1
        end
      end
    end
  end
  return moved
end

-- Makes one waiter the owner, if it listens. The lock is set before the message is sent: a server that is out of memory may refuse
-- to set it, and a message without a lock behind it would be a lie.
local function grant(token, attempt, first, block, inbox)
  local fence = reserve(tonumber(block))
  redis.call('SET', lock, token, 'PX', first)
  return tell(inbox, attempt, fence, block, token)
end

-- Serves the queue of a lock that is, or is about to be, free. `asking` is whoever asks for it right now, or ''.
-- Result: 'served', the first waiter that is alive and listens is the owner; 'asking', nobody is before the one who asks;
-- 'nobody'. In the last two cases the lock may still hold an old token: the caller sets or deletes it.
local function serve(asking)
  local from, now = 0, nil
  while true do
    local tokens = redis.call('ZRANGE', queue, from, from + 15)
    if #tokens == 0 then
      return 'nobody'
    end
    now = now or clock() / 1000
    for _, token in ipairs(tokens) do
      if token == asking then
        return 'asking'
      end
      local alive, attempt, first, block, inbox, condition = look(waiters, token, now)
      local ok, heard = true, false
      if alive >= 0 then
        ok, heard = pcall(grant, token, attempt, first, block, inbox)
        if not ok then
          return 'nobody'
        end
      end
      -- A waiter that was notified, and is dead or does not listen, passes the notification on. If nobody takes it, it keeps it.
      local passed = not heard and condition and condition ~= '' and notify(condition, 1, false) == 1
      if passed and alive >= 0 then
        local stem = queue:sub(1, -6) .. 'condition:' .. condition .. ':'
        local rest = table.concat({attempt, first, block, inbox, ''}, '|')
        enter(stem .. 'queue', stem .. 'waiters', token, clock(), alive, rest)
      end
      if heard or passed or alive < 0 then
        leave(queue, waiters, token)
      else
        from = from + 1
      end
      if heard then
        return 'served'
      end
    end
  end
end
