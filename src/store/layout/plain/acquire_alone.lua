-- Acquires a plain lock without a fence, or says how long it is held, and looks at no other key:
-- while the slot of the lock moves to another node of a cluster, scripts with all of its keys are
-- refused.
--
-- KEYS  1 the lock
-- ARGV  1 token   2 lease (ms)   3 whether a key that already holds the token is ours (0 or 1)
-- Result  see acquire_refused.lua
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then
  return holder.err:find('WRONGTYPE', 1, true) and {2} or holder
end
local rest = holder and redis.call('PTTL', KEYS[1])
if holder and not (holder == ARGV[1] and ARGV[3] == '1') then
  return {0, rest, 0}
end
-- Never an earlier end: see take.lua.
redis.call('SET', KEYS[1], ARGV[1], 'PX', math.max(ARGV[2], rest or 0))
return {1, 0, 0}
