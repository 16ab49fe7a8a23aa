-- What every script of a layout with a queue begins with. The room comes next: plain/mutex.lua or
-- shared/room.lua. Behind that, foreign.lua.
--
-- KEYS  1 the lock   2 its fence counter   3 its queue   4 its waiters   5 its conditions
--       Scripts that need only the lock are given only the lock.
--
-- Making a function takes time in every call, and more if it uses many locals of the script. So
-- scripts make few functions, make them late, and name the keys by their numbers.

-- The server's clock in µs, the same for all of a script.
local instant
local function clock()
  if not instant then
    local now = redis.call('TIME')
    instant = now[1] * 1000000 + now[2]
  end
  return instant
end

