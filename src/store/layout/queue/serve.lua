-- Serving the queue: behind conditions.lua and fences.lua.

-- How many waiters a script grants their leases at most: the server does nothing else meanwhile.
local MOST_GRANTS = 128
local granted = 0

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

-- Takes a waiter out of the queue.
local function leave(token)
  redis.call('HDEL', KEYS[4], token)
  redis.call('ZREM', KEYS[3], token)
end

-- A waiter does not come, or not now: its notification passes on, to one that waited when it was
-- given. A waiter that stays forgets it, so that it passes on once.
local function pass_on(token, entry, stays)
  if (entry.condition or '') ~= '' then
    notify(entry.condition, 1, entry.at)
    if stays then
      entry.at, entry.condition = '', ''
      write(token, entry)
    end
  end
end

-- Grants one waiter its lease. The message comes last: whatever may be refused, by a server that is
-- out of memory or for a missing permission, is refused before a message announces the lock. The
-- number of receivers is not checked: subscribers at a replica receive it, too.
local function grant(token, entry)
  local attempt, first, block = entry.rest:match('^(%d+)|(%d+)|(%d+)$')
  local fence, count = reserve(tonumber(block))
  if not fence then
    return false
  end
  put(token, first)
  leave(token)
  if tell(entry.inbox, attempt, fence, count, token) then
    return true
  end
  -- It stays the first.
  local next = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
  enter(token, entry, next and next - 1)
  return false
end

-- Serves the queue in its order (R27): each waiter that listens gets its lease, as long as there is
-- room. One that listens and does not fit waits, and those behind it with it; nobody waits for one
-- that does not listen. `asking`: the token that asks for the lock right now, or ''. `leaver`: the
-- token that has just lost the lock, if there is one. It is in the queue, as holders may be, if
-- acquire_alone.lua granted the lock, which leaves the queue as it is.
-- Result: whether it is the asker's turn, if there is room for it.
local function serve(asking, leaver)
  -- Most likely the first waiter listens, and there is no room for another. If not, the next are
  -- looked at together, with one question who of them listens.
  local passed, most, now = 0, 1, clock() / 1000
  while not full do
    local tokens = redis.call('ZRANGE', KEYS[3], passed, passed + most - 1)
    if #tokens == 0 then
      return true
    end
    local entries, inboxes
    if most > 1 then
      entries, inboxes = {}, {NUMSUB = {}, SHARDNUMSUB = {}}
      for at, token in ipairs(tokens) do
        local entry = look(token)
        entries[at] = entry or {}
        if entry then
          local sharded = entry.inbox:find('{', 1, true)
          table.insert(inboxes[sharded and 'SHARDNUMSUB' or 'NUMSUB'], entry.inbox)
        end
      end
    end
    for at = 1, #tokens do
      local token = tokens[at]
      local entry = entries and entries[at] or look(token) or {}
      local lives = token ~= asking and entry.alive and entry.alive >= now
      local hears = lives and heard(entry.inbox, inboxes)
      local unasked = lives and tonumber(entry.state)
      if token == asking then
        if fits(token) or heard(entry.inbox or '', inboxes) == 1 then
          return true
        end
        passed = passed + 1
      elseif token == leaver or mine(token) then
        leave(token)
      elseif not lives then
        leave(token)
        -- Whatever may keep the notification from passing on, the lock has to be released.
        pcall(pass_on, token, entry)
      elseif hears == 2 then
        -- The server does not say who listens, so nobody can be served.
        return true
      -- A time that is further ahead was written before the clock was set back.
      elseif hears == 0 or unasked and (unasked < now or unasked > now + TIME_TO_ASK) then
        -- It keeps its place: its inbox may only be reconnecting.
        pcall(pass_on, token, entry, true)
        passed = passed + 1
      elseif granted == MOST_GRANTS or not fits(token) then
        return false
      else
        local ok, has_it = pcall(grant, token, entry)
        if not (ok and has_it) then
          -- Nobody was told, so whoever asks may have the lock.
          remove(token)
          return true
        end
        granted = granted + 1
        -- Whoever is behind the last one that there is room for has not had its turn.
        if full then
          return false
        end
      end
    end
    most = 16
  end
  return false
end

