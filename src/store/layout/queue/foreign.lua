-- If the lock's key holds somebody else's data, each script decides what that means. Any other
-- error, such as a missing permission, ends the script here.
if foreign and not foreign.err:find('WRONGTYPE', 1, true) then
  return foreign
end

