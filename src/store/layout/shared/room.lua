-- The room of a lock with shares: a sorted set of tokens, each with the end of its lease by the
-- server's clock (ms). What a lease takes of the room stands in its token:
--   w:…     a writer: all of it
--   r:…     a reader: it fits beside any number of readers, and beside nobody else
--   pN/M:…  N permits of M: it fits while at most M are taken. It has N members, which are the
--           token, and the token with '#2' to '#N' behind it. N is at most 1,024, and not more
--           than M; whoever asks has checked that.
-- Behind that come a UUID, '@', and the client's name: see src/base/client_name.rs.
-- The functions are those of plain/mutex.lua.

-- As in Redis, a lease of n ms has expired when the clock shows more than n ms later.
local now = math.floor(clock() / 1000)
-- What kind of leases is in, as the letter of their tokens; nil or false: none. All members of a
-- token have the same end, so the first member is one without a '#'.
local first, kind
-- What has expired is swept before every decision. A set whose first member is no token of ours is
-- left alone.
repeat
  first = redis.pcall('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  kind = first[1] and first[1]:match('^([rwp])[%d/]*:[%x-]+@[%w._-]+$')
  local has_expired = kind and tonumber(first[2]) < now
  if has_expired then
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)
  end
until not has_expired
local foreign = first.err and first
if first[1] and not kind then
  foreign = redis.error_reply('WRONGTYPE the key holds a sorted set of another kind')
elseif kind and ARGV[1] and (kind == 'p') ~= (ARGV[1]:sub(1, 1) == 'p') then
  foreign = redis.error_reply('WRONGTYPE the key holds a lock of another kind')
end

-- How many permits the token takes, and of how many.
local function permits(token)
  local taken, all = token:match('^p(%d+)/(%d+):')
  return tonumber(taken or 1), tonumber(all)
end

local function mine(token)
  return kind and redis.call('ZSCORE', KEYS[1], token) and true
end

-- How many permits are taken, once that is known.
local count
local full = foreign or kind == 'w'

local function fits(token)
  if full or not kind then
    return not full
  elseif kind == 'p' then
    local wanted, all = permits(token)
    count = count or redis.call('ZCARD', KEYS[1])
    return all and count + wanted <= all
  end
  return token:sub(1, 1) == kind
end

-- An asker that would fit was refused because others wait before it: the end of the next lease
-- counts.
local function left(token)
  local wanted, all = permits(token)
  local ends = -1
  if all and kind then
    ends = math.max(redis.call('ZCARD', KEYS[1]) + wanted - all, 1) - 1
  end
  local last = redis.call('ZRANGE', KEYS[1], ends, ends, 'WITHSCORES')
  return last[2] and last[2] - now or -1
end

-- The members that a token has, each behind `score` if there is one.
local function members(token, score)
  local list = {}
  for number = 1, (permits(token)) do
    list[#list + 1] = score
    list[#list + 1] = number == 1 and token or token .. '#' .. number
  end
  return list
end

-- The key lasts as long as each of its members. Where there are some, that is written first: a
-- server without memory refuses to begin with ZADD, but not to go on with it. So there a lease that
-- is in can be extended. A lease beside others can still be put in, too, and costs next to nothing.
local function put(token, lease)
  if kind then
    redis.call('PEXPIRE', KEYS[1], math.max(lease, redis.call('PTTL', KEYS[1])))
  end
  local added = redis.call('ZADD', KEYS[1], 'GT', unpack(members(token, now + lease)))
  if not kind then
    redis.call('PEXPIRE', KEYS[1], lease)
    kind, count = token:sub(1, 1), 0
  end
  -- Once the permits are taken, there is no need to look at more of the queue.
  count = count and count + added
  full = kind == 'w' or kind == 'p' and count and count >= select(2, permits(token))
end

local function remove(token)
  redis.call('ZREM', KEYS[1], unpack(members(token)))
  kind, count, full = redis.call('EXISTS', KEYS[1]) == 1 and kind, nil, false
end

local function close() end

