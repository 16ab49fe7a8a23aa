-- The waiters of a lock: behind its room, in front of each script that looks at them.
--
-- The waiters, a hash, have one entry for each waiter, under its token, with times in ms by the
-- server's clock (and one field for each line of a condition: see wait.lua):
--   "alive until|attempt|first lease|fences|inbox|state|at (µs)|condition"
-- The state says where the waiter is:
--   'line'    in the line of `condition`, since `at`. The conditions are a sorted set in which all
--             scores are 0, so its members are in the order of their texts: see conditions.lua.
--   ''        in the lock's queue, a sorted set of tokens: each is one behind the last.
--   a number  in the queue, notified, and has not asked since: until this time the lock may be
--             handed to it all the same.
-- A waiter in the queue that was notified keeps `condition`, and `at`, when the notification was
-- given. If it does not come at its turn, the notification passes on, once, and both go.

-- Whether an inbox has a subscriber on this very server (R21): 1 or 0, and 2 if the server does not
-- say, as to a user who may not ask. In a cluster it is a channel of the shard, and has a hash tag.
-- `inboxes`: lists of inboxes to ask for at once, by subcommand.
local ears = {}
local function heard(inbox, inboxes)
  if not ears[inbox] then
    local subcommand = inbox:find('{', 1, true) and 'SHARDNUMSUB' or 'NUMSUB'
    local asked = inboxes and inboxes[subcommand] or {inbox}
    local counted = redis.pcall('PUBSUB', subcommand, unpack(asked))
    ears[inbox] = 2
    for at = 1, #counted, 2 do
      ears[counted[at]] = math.min(counted[at + 1], 1)
    end
  end
  return ears[inbox]
end

-- The entry of a waiter, or nil.
local function look(token)
  local text = redis.call('HGET', KEYS[4], token) or ''
  local alive, rest, inbox, state, at, condition =
    text:match('^(%d+)|(%d+|%d+|%d+)|([^|]*)|([^|]*)|(%d*)|(.*)$')
  return alive and {
    alive = tonumber(alive), rest = rest, inbox = inbox,
    state = state, at = at, condition = condition,
  }
end

-- Writes the entry of a waiter.
local function write(token, entry)
  redis.call('HSET', KEYS[4], token, table.concat({
    math.floor(entry.alive), entry.rest, entry.inbox, entry.state, entry.at, entry.condition,
  }, '|'))
end

-- Makes the keys last as long as this entry counts as alive. They expire together, when nobody
-- waits any more, even if all waiters died: a place that expired before its entry would take a
-- notification with it, and leave an entry that no script meets again. `made`: the queue or the
-- conditions, if it may have been made just now. Data of another type gets no end.
local function outlast(entry, made)
  local life = math.max(math.ceil(entry.alive - clock() / 1000), 1)
  local rest = redis.call('PTTL', KEYS[4])
  if made or rest < life then
    life = math.max(life * 2, rest)
    redis.call('PEXPIRE', KEYS[4], life)
    if made and rest == -1 then
      -- The only waiter.
      redis.call('PEXPIRE', made, life)
      return
    end
    for _, key in ipairs({KEYS[3], KEYS[5]}) do
      if redis.call('TYPE', key).ok == 'zset' then
        redis.call('PEXPIRE', key, life)
      end
    end
  end
end

-- Puts a waiter into the queue: at its old place, or at this new one, or at the end. Whatever may
-- find somebody else's data comes before the first write that would have to be undone.
local function enter(token, entry, place)
  local last = redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')[2]
  write(token, entry)
  redis.call('ZADD', KEYS[3], 'NX', place or (last or 0) + 1, token)
  outlast(entry, not last and KEYS[3])
end

