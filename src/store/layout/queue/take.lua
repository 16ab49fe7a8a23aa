-- Gives the asker its lease, for which there is room, or its whole lease again. Result: that of a
-- script that acquires.
local function take(token, lease, wanted)
  local fence, count = reserve(tonumber(wanted))
  if not fence then
    return {2}
  end
  put(token, lease)
  return {1, fence, count}
end

