-- Exchanges the token of a writer's lease for that of a reader, in one step (R28). Those behind it
-- in the queue may fit now. If this is repeated after a lost reply, the reader is there already.
--
-- KEYS  see keys.lua
-- ARGV  1 the writer's token   2 the reader's   3 lease (ms)
-- Result  1 exchanged   0 not ours
if not mine(ARGV[2]) and not mine(ARGV[1]) then
  return 0
end
-- First, so that the room is taken also if the server refuses what follows.
put(ARGV[2], ARGV[3])
remove(ARGV[1])
kind, full = 'r', false
-- Whatever keeps the queue from being served, the exchange stands: the waiters ask again.
pcall(hand_over, '')
return 1
