-- Shared functions, in front of each script for locks that hold their deadline.
--
-- The lock is a string: the deadline in epoch ms, as old clients write it. A deadline says nothing
-- about its owner, so ours come with a mark, "deadline token", which old clients do not know: the
-- lock is ours while it holds exactly the deadline of our mark.
local lock, mark = KEYS[1], KEYS[2]

local function clock()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

-- The deadline as it is written; nil for a free lock, false for foreign data: epoch ms have had
-- 13 digits since 2001. A key of another type makes GET fail, and the script with it.
local function deadline()
  local value = redis.call('GET', lock)
  if not value then
    return nil
  end
  return #value >= 13 and value:match('^%d+$') or false
end

local function has_passed(value, now)
  return tonumber(value) < now
end

-- In ms. Bounded: an old client may write any number, and the result becomes an integer.
local function rest(value, now)
  return math.min(tonumber(value) - now, 2 ^ 52)
end

local function is_ours(value, token)
  return value and redis.call('GET', mark) == value .. ' ' .. token
end

-- The mark first: a mark without its lock means nothing, but a lock without its mark would be
-- nobody's until its deadline. Both expire with the deadline.
local function write(token, now, length)
  local value = string.format('%.0f', now + length)
  redis.call('SET', mark, value .. ' ' .. token, 'PX', length)
  redis.call('SET', lock, value, 'PX', length)
end
