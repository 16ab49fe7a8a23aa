-- Shared functions, in front of each script that looks at a whole lock of Redisson's.
--
-- Such a lock is a hash of one field: its owner, with the number of its holds. A hash of any other
-- form is foreign data.
-- Result: the owner, nil for a free lock, false for other data. A key of another type makes HLEN
-- fail, and the script with it.
local function holder()
  local size = redis.call('HLEN', KEYS[1])
  if size == 0 then
    return nil
  end
  local pair = size == 1 and redis.call('HGETALL', KEYS[1])
  return pair and pair[2]:match('^%d+$') and pair[1] or false
end
