-- Says who holds a lock that holds its deadline.
--
-- KEYS  1 the lock   2 our mark
-- Result  {{token, or the deadline itself if it is an old client's, rest until the deadline in
--           ms}, or {} if it is free, 0, {}}   {2} foreign data
local value, now = deadline(), clock()
if value == false then
  return {2}
end
if not value or has_passed(value, now) then
  return {{}, 0, {}}
end
local written, token = (redis.call('GET', mark) or ''):match('^(%d+) (.*)$')
return {{written == value and token or value, rest(value, now)}, 0, {}}
