-- Gives each group of a list that has something under way or waiting a place of its own in the queue.
--
-- KEYS[1] queue  zset  group, or list of groups -> next attempt (ms)
-- KEYS[2] lanes  hash  group -> see lease.lua
--
-- ARGV[1] now (ms), ARGV[2] the list, then its groups
--
-- Returns the number of groups that have a place now.
-- What is of a wrong type fails here, before anything is written: a script is not undone.
redis.call('HLEN', KEYS[2])
if redis.call('ZREM', KEYS[1], ARGV[2]) == 0 then
  return 0
end
local lanes = redis.call('HMGET', KEYS[2], unpack(ARGV, 3))
local places = {}
for i = 1, #ARGV - 2 do
  if lanes[i] then
    places[#places + 1] = ARGV[1]
    places[#places + 1] = ARGV[2 + i]
  end
end
if #places > 0 then
  -- A group that has one already keeps it.
  redis.call('ZADD', KEYS[1], 'NX', unpack(places))
end
return #places / 2
