-- Ends a lease, if the token has one, and serves the queue. Result: 1 if it had one, or else 0.
local function hand_over(token)
  local is_mine = mine(token)
  if is_mine then
    remove(token)
  end
  despite_foreign(serve, '', token)
  close()
  return is_mine and 1 or 0
end

