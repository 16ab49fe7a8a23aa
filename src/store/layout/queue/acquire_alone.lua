-- Acquires a lock without a fence, or says how long it is held, and looks at no other key: while
-- the slot of the lock moves to another node of a cluster, scripts with all of its keys are
-- refused.
--
-- KEYS  1 the lock
-- ARGV  1 to 3, and result: see acquire.lua
if not is_mine and not fits(token) then
  return {0, left(token), 0}
end
put(token, ARGV[2])
return {1, 0, 0}
