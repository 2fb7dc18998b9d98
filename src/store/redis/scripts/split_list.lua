-- Gives each group of a list that has notifications left an entry of its own in the queue.
--
-- KEYS[1] queue  zset  group, or list of groups -> next attempt (ms)
-- KEYS[2] lanes  hash  group -> see lease.lua
--
-- ARGV[1] now (ms), ARGV[2] the list, then its groups
--
-- Returns the number of groups that have an entry of their own.
--
-- This command fails if a key is of a wrong type, before any write: Redis does not undo a script.
redis.call('HLEN', KEYS[2])
if redis.call('ZREM', KEYS[1], ARGV[2]) == 0 then
  return 0
end
local lanes = redis.call('HMGET', KEYS[2], unpack(ARGV, 3))
local entries = {}
for i = 1, #ARGV - 2 do
  if lanes[i] then
    entries[#entries + 1] = ARGV[1]
    entries[#entries + 1] = ARGV[2 + i]
  end
end
if #entries > 0 then
  -- A group that already has an entry keeps it.
  redis.call('ZADD', KEYS[1], 'NX', unpack(entries))
end
return #entries / 2
