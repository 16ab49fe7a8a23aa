-- Looks whether the asker has its lease already. Somebody else's data is no error here: nothing has
-- been done yet, and an error may come after a write.
--
-- ARGV  see acquire.lua
local token = ARGV[1]
if foreign then
  return {2}
end
local is_mine = ARGV[3] == '1' and mine(token)
