-- The waiters of a plain lock: in front of each script that looks at them.
--
-- KEYS  1 the lock   2 its fence counter   3 its queue   4 its waiters   5 its conditions
--
-- The waiters, a hash, have one entry for each waiter, under its token, with times in ms by the
-- server's clock:
--   "alive until|attempt|first lease|fences|inbox|state|at (µs)|condition"
-- The state says where the waiter is:
--   'line'    in the line of `condition`, since `at`. The conditions are a sorted set in which all
--             scores are 0, so its members are in the order of their texts: see serve.lua.
--   ''        in the lock's queue, a sorted set of tokens: each is one behind the last.
--   a number  in the queue, notified, and has not asked since: until this time the lock may be
--             handed to it all the same.
-- A waiter in the queue that was notified keeps `condition`, and `at`, when the notification was
-- given. If it does not come at its turn, the notification passes on, once, and both go.
--
-- Making a function costs as much as a command. So each script makes those that it needs, when it
-- needs them.
local lock, counter, queue, waiters, conditions = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

-- The server's clock in µs, the same for all of a script.
local instant
local function clock()
  if not instant then
    local now = redis.call('TIME')
    instant = now[1] * 1000000 + now[2]
  end
  return instant
end

-- Whether this inbox has a subscriber on this very server (R21): 1 or 0, and 2 if this user may not
-- ask. In a cluster it is a channel of the shard, and has a hash tag.
local ears = {}
local function heard(inbox)
  if not ears[inbox] then
    local numsub = inbox:find('{', 1, true) and 'SHARDNUMSUB' or 'NUMSUB'
    local counted = redis.pcall('PUBSUB', numsub, inbox)
    ears[inbox] = counted.err and 2 or math.min(counted[2], 1)
  end
  return ears[inbox]
end

-- The entry of a waiter, or nil.
local function look(token)
  local text = redis.call('HGET', waiters, token) or ''
  local alive, rest, inbox, state, at, condition =
    text:match('^(%d+)|(%d+|%d+|%d+)|([^|]*)|([^|]*)|(%d*)|(.*)$')
  return alive and {
    alive = tonumber(alive), rest = rest, inbox = inbox,
    state = state, at = at, condition = condition,
  }
end

-- Writes the entry of a waiter.
local function write(token, entry)
  redis.call('HSET', waiters, token, table.concat({
    math.floor(entry.alive), entry.rest, entry.inbox, entry.state, entry.at, entry.condition,
  }, '|'))
end

-- Makes the keys last as long as this entry counts as alive. They expire together, when nobody
-- waits any more, even if all waiters died: a place that expired before its entry would take a
-- notification with it, and leave an entry that no script meets again. `is_new`: one of them may
-- have been made just now. Somebody else's data gets no end.
local function outlast(entry, is_new)
  local life = math.max(math.ceil(entry.alive - clock() / 1000), 1)
  local rest = redis.call('PTTL', waiters)
  if is_new or rest < life then
    life = math.max(life * 2, rest)
    redis.call('PEXPIRE', waiters, life)
    for _, key in ipairs({queue, conditions}) do
      if redis.call('TYPE', key).ok == 'zset' then
        redis.call('PEXPIRE', key, life)
      end
    end
  end
end

-- Puts a waiter into the queue: at its old place, or at this new one, or at the end. Whatever may
-- find somebody else's data comes before the first write that would have to be undone.
local function enter(token, entry, place)
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
  write(token, entry)
  redis.call('ZADD', queue, 'NX', place or (last or 0) + 1, token)
  outlast(entry, not last)
end

