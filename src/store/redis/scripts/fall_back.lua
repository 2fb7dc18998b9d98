-- Queues what waits for a receiver for its fallback too.
--
-- The notifications of a lane are in order, so the last one that was queued says which are left.
--
-- KEYS[1] fallen         hash  group -> the last of its notifications that was queued for the fallback
-- KEYS[2] notifications  hash  id -> notification (JSON)
-- KEYS[3] queue          zset  of the fallback: group -> next attempt (ms)
-- KEYS[4] lanes          hash  of the fallback: group -> see lease.lua
--
-- ARGV[1] now (ms), then for each group: its key, the last notification before ('' if there is none) and from now on,
-- the number of its copies, and the id and the text (JSON) of each
--
-- Returns the number of copies that were queued.
local queued, a = 0, 2
-- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
redis.call('HLEN', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('ZCARD', KEYS[3])
redis.call('HLEN', KEYS[4])
while ARGV[a] do
  local group, count = ARGV[a], tonumber(ARGV[a + 3])
  if (redis.call('HGET', KEYS[1], group) or '') == ARGV[a + 1] then
    redis.call('HSET', KEYS[1], group, ARGV[a + 2])
    local lane = redis.call('HGET', KEYS[4], group)
    local ids, own = string.match(lane or '0', '^([^\n]*)(.*)$')
    for c = a + 4, a + 2 + 2 * count, 2 do
      if not string.find(ids .. ' ', ' ' .. ARGV[c] .. ' ', 1, true) then
        ids = ids .. ' ' .. ARGV[c]
        redis.call('HSET', KEYS[2], ARGV[c], ARGV[c + 1])
        queued = queued + 1
      end
    end
    redis.call('HSET', KEYS[4], group, ids .. own)
    if not lane then
      redis.call('ZADD', KEYS[3], ARGV[1], group)
    end
  end
  a = a + 4 + 2 * count
end
return queued
