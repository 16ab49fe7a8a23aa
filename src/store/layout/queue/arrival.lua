-- Conditions: behind queue.lua, in front of the scripts that wait and notify.

-- The arrival of a new waiter at the end of a line, in µs and with 16 digits: now, but later than
-- the last one even if the clock went back.
local function arrival_in(line)
  local last = redis.call('ZRANGE', KEYS[5], '(' .. line .. ':', '[' .. line,
                          'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
  local before = last and tonumber(last:sub(#line + 1, #line + 16)) or 0
  return string.format('%016.0f', math.max(clock(), before + 1))
end
