-- Any other error than that the lock's key is somebody else's data, such as a missing permission,
-- ends the script.
if foreign and not foreign.err:find('WRONGTYPE', 1, true) then
  return foreign
end

