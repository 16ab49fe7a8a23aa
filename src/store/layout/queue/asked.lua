-- Looks whether the asker has its lease already. For somebody else's data the result is {2}, and
-- not the error: the caller takes an error for one that may have come after a write.
--
-- ARGV  see acquire.lua
local token = ARGV[1]
if foreign then
  return {2}
end
local is_mine = ARGV[3] == '1' and mine(token)
