-- Releases a plain lock of any holder, and serves the queue. Foreign data is left alone.
--
-- KEYS  see keys.lua
-- Result  1 released   0 nobody held it
if foreign then
  return foreign
end
if not holder then
  return 0
end
return hand_over(holder)
