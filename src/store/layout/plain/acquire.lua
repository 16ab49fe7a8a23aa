
-- Acquires a plain lock that is free, or the asker's own. Keys, arguments and result: see
-- acquire_refused.lua.
if not mine and serve(token) == 'served' then
  return refuse()
end
return take(token, ARGV[2], ARGV[4], mine)
