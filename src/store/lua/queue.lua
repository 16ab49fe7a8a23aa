-- The common part of the scripts that free a plain lock, in front of each of them.
--
-- A waiter is an entry in two keys in the lock's slot: in the queue, a sorted set, its token by arrival (server clock, µs), and
-- in the waiters, a hash, "alive until (server clock, ms) | attempt | first lease (ms) | fences | inbox".

local lock, counter, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local function clock()
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2]
end

-- The last of `block` new fences: max(last + block, the server's clock in µs), which grows also after the counter was
-- lost. Both stay below 2^53. 0 without fences.
local function reserve(block, life)
  if block == 0 then
    return '0'
  end
  local last = tonumber(redis.call('GET', counter) or 0) or 0
  local fence = string.format('%.0f', math.max(last + block, clock()))
  redis.call('SET', counter, fence, 'PX', life)
  return fence
end

local function leave(token)
  redis.call('ZREM', queue, token)
  redis.call('HDEL', waiters, token)
end

-- Makes one waiter the owner, if it listens. The lock is set before the message is sent: a server that is out of memory may refuse
-- to set it, and a message without a lock behind it would be a lie.
local function grant(token, attempt, first, block, inbox, life)
  local fence = reserve(tonumber(block), life)
  redis.call('SET', lock, token, 'PX', first)
  return redis.call('PUBLISH', inbox, attempt .. ' ' .. fence .. ' ' .. token .. ' ' .. lock) > 0
end

-- Serves the queue of a lock that is, or is about to be, free. `asking` is whoever asks for it right now, or ''.
-- Result: 'served', the first waiter that is alive and listens is the owner; 'asking', nobody is before the one who asks;
-- 'nobody'. In the last two cases the lock may still hold an old token: the caller sets or deletes it.
local function serve(asking, life)
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
      local entry = redis.call('HGET', waiters, token) or ''
      local alive, attempt, first, block, inbox = entry:match('^(%d+)|(%d+)|(%d+)|(%d+)|(.+)$')
      if not alive or tonumber(alive) < now then
        leave(token)
      else
        local ok, heard = pcall(grant, token, attempt, first, block, inbox, life)
        if not ok then
          return 'nobody'
        end
        if heard then
          leave(token)
          return 'served'
        end
        -- Nobody listens for it: it keeps its place and is passed over.
        from = from + 1
      end
    end
  end
end
