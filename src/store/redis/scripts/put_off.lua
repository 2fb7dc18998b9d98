-- Puts off the next attempt of deliveries that are under way, whether it is still made or has failed.
--
-- KEYS[1] queue  zset  group, or list of groups -> next attempt (ms)
-- KEYS[2] lanes  hash  group -> see lease.lua
--
-- ARGV[1] next attempt (ms), ARGV[2] number of deliveries N, then N group keys, then N ids, then N times
-- the number of the attempt
--
-- Only what is first in its lane is under way, with its last attempt: another instance may have ended it,
-- or may have begun another one. A group of a list has a place of its own with this. Returns for each 1 if it
-- was put off, else 0.
local count = tonumber(ARGV[2])
local lanes = redis.call('HMGET', KEYS[2], unpack(ARGV, 3, 2 + count))
local places, answers = {}, {}
for i = 1, count do
  local attempt, id = string.match(lanes[i] or '', '^(%d+) (%S+)')
  local is_under_way = id == ARGV[2 + count + i] and attempt == ARGV[2 + 2 * count + i]
  answers[i] = is_under_way and 1 or 0
  if is_under_way then
    places[#places + 1] = ARGV[1]
    places[#places + 1] = ARGV[2 + i]
  end
end
if #places > 0 then
  redis.call('ZADD', KEYS[1], unpack(places))
end
return answers
