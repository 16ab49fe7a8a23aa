
-- Gives the asker the lock, which is free or already its own. Returns the result of the script.
local function take(token, lease, wanted, mine)
  local fence, count = reserve(tonumber(wanted))
  if not fence then
    return {2}
  end
  -- The whole lease again, but never an earlier end: this may be a late copy, and the lease may
  -- have been extended since. Written even if the end does not move: a replica refuses the write,
  -- and so cannot say that the lease is ours (R35).
  redis.call('SET', lock, token, 'PX', mine and math.max(redis.call('PTTL', lock), lease) or lease)
  leave(token)
  return {1, fence, count}
end
