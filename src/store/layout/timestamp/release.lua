-- Releases a lock that holds our deadline.
--
-- KEYS  1 the lock   2 our mark
-- ARGV  1 token
-- Result  1 released   0 not ours
if not is_ours(deadline(), ARGV[1]) then
  return 0
end
redis.call('DEL', lock, mark)
return 1
