-- Acquires a plain lock that is free and that nobody waits for; everything else is left to what follows.
-- Keys, arguments and result: see acquire.lua. Stands before the functions of queue.lua, because making them costs more than all this.
if redis.call('EXISTS', KEYS[1], KEYS[3]) == 0 then
  local fence = 0
  if ARGV[4] ~= '0' then
    -- Written first: a server without memory refuses it, and then nothing has been done. max(last + block, the server's clock in µs).
    local now = redis.call('TIME')
    local clock = now[1] * 1000000 + now[2]
    -- A number of at most 16 digits: the server writes it out in full, for less than `string.format` costs.
    fence = clock
    local grown = (tonumber(redis.call('SET', KEYS[2], fence, 'PX', '2592000000', 'GET') or 0) or 0) + ARGV[4]
    if grown > clock then
      fence = grown
      redis.call('SET', KEYS[2], fence, 'PX', '2592000000')
    end
  end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {1, fence, ARGV[4]}
end
