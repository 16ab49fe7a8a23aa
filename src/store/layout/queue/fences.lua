-- Fences: in front of the scripts that give some out.

-- A block of new fences (R16): its last fence, and how many it has, at most `wanted`. All are
-- greater than the counter, and the last is the server's clock in µs: so they grow even after the
-- counter was lost. Only if the clock went back, the counter is ahead of it, and grows by one. The
-- first block after a loss is a single fence: a longer block reaches back in time, perhaps to
-- before a fence that was given out. The limit of 1,024 has the same reason: a counter that was set
-- back, not lost, looks like one that nobody used for a while. Nil if the counter is somebody
-- else's data. All fences stay below 2^53. The counter outlives its lock by 30 days.
local function reserve(wanted)
  if wanted == 0 then
    return '0', 0
  end
  local last, fence, count = redis.call('GET', KEYS[2]), clock(), 1
  if last then
    local known = last:find('^%d+$') and tonumber(last)
    if not known or known > 9007194959773696 then
      return nil
    end
    fence = math.max(known + 1, fence)
    count = math.min(wanted, fence - known, 1024)
  end
  redis.call('SET', KEYS[2], fence, 'PX', '2592000000')
  return string.format('%.0f', fence), count
end

