-- Releases a lease that is ours, and looks at no other key: see acquire_alone.lua.
--
-- KEYS  1 the lock
-- ARGV  1 token
-- Result  1 released   0 not ours
remove(ARGV[1])
close()
return 1
