-- Acquires a lock that has room for the asker, or has its lease already.
--
-- KEYS  see keys.lua
-- ARGV  1 token   2 lease (ms)   3 whether a lease in the room that has this token is ours (0 or 1)
--       4 how many fences to reserve, 0 for none; and for a waiter that queues:
--       5 inbox   6 attempt   7 how long an entry counts as alive (ms)
--       8 first lease of a hand-off (ms)
-- Result  {1, last fence or 0, how many} granted
--         {0, rest of the lease in ms, whether the waiter can be reached (0 or 1; 2: the server
--           does not say)} refused   {2} foreign data
if not is_mine and not (serve(token) and fits(token)) then
  return refuse()
end
return take_turn(token, ARGV[2], ARGV[4])
