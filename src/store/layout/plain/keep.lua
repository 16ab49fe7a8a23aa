-- Ends a plain lease that is ours, and keeps the lock for a while: under a token that nobody has,
-- so that a late extend finds nothing. The first waiter is told to ask again, and so learns for how
-- long. A waiter that is not told learns it when it asks next.
--
-- KEYS  1 the lock; and to tell the waiter, all others: see keys.lua
-- ARGV  1 token   2 for how long (ms)
-- Result  1 ours   0 not ours
-- First: a server without memory refuses to begin with SET, but not to go on with it.
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('SET', KEYS[1], 'kept:' .. ARGV[1], 'PX', ARGV[2])
if KEYS[3] then
  -- Whatever keeps the waiter from being told, the lock is kept.
  pcall(function()
    local token = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
    local entry = token and look(token)
    if entry and heard(entry.inbox) == 1 then
      tell(entry.inbox, 0, 0, 0, token)
    end
  end)
end
return 1
