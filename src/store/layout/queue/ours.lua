-- Ends the script, with 0, if the lease is not ours.
--
-- ARGV  1 token
if not mine(ARGV[1]) then
  return 0
end
