-- Puts off the next attempt of deliveries that are under way, whether it is still made or has failed.
--
-- KEYS[1] queue  zset  group, or list of groups -> next attempt (ms)
-- KEYS[2] lanes  hash  group -> see lease.lua
--
-- ARGV[1] next attempt (ms), ARGV[2] number of deliveries N, then N group keys, then N ids
--
-- Only what is first in its lane is under way: somebody else may have ended it. A group of a list has a
-- place of its own with this. Returns the number of deliveries that were put off.
local count = tonumber(ARGV[2])
local lanes = redis.call('HMGET', KEYS[2], unpack(ARGV, 3, 2 + count))
local places = {}
for i = 1, count do
  if string.match(lanes[i] or '', '^%d+ (%S+)') == ARGV[2 + count + i] then
    places[#places + 1] = ARGV[1]
    places[#places + 1] = ARGV[2 + i]
  end
end
if #places > 0 then
  redis.call('ZADD', KEYS[1], unpack(places))
end
return #places / 2
