-- The room of a plain lock: for one lease. It is a string that holds the token. shared/room.lua has
-- the same functions for the other room.

-- The token that holds the lock; false: nobody does. Nil: nobody does, but the string has not been
-- deleted yet, because the next holder most likely replaces it.
local holder = redis.pcall('GET', KEYS[1])
-- The error reply, if there is one. Then the lock's key is somebody else's data: no lease of ours
-- is there, and none fits.
local foreign = type(holder) == 'table' and holder
-- Whether there is no room for any lease, whatever its token.
local full = holder ~= false

-- Whether this token's lease is in the room.
local function mine(token)
  return holder == token
end

-- Whether this token's lease fits in, beside those that are in.
local function fits()
  return not full
end

-- How long an asker that was refused waits at most, unless leases are extended (ms).
local function left()
  return redis.call('PTTL', KEYS[1])
end

-- Lets a lease in, for this time (ms). One that is in never ends earlier: this may be a late copy,
-- and the lease may have been extended since. Written even if its end does not move: a replica
-- refuses the write, and so cannot say that the lease is ours (R35).
local function put(token, lease)
  if holder == token then
    redis.call('PEXPIRE', KEYS[1], math.max(lease, left()))
  else
    redis.call('SET', KEYS[1], token, 'PX', lease)
    holder, full = token, true
  end
end

-- Lets a lease out. `close` has to follow.
local function remove()
  holder, full = nil, false
end

local function close()
  if holder == nil then
    redis.call('DEL', KEYS[1])
  end
end

