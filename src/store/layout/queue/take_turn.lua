-- The asker gets its lease, or its whole lease again. Others behind it may fit, too. Result: that
-- of the script.
local function take_turn(token, lease, wanted)
  local result = take(token, lease, wanted)
  if result[1] == 1 then
    leave(token)
    despite_foreign(serve, '')
  end
  return result
end

