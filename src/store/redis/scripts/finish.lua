-- Ends deliveries to one receiver: they are delivered, or become dead letters.
--
-- KEYS[1] queue          zset  group -> next attempt (ms)
-- KEYS[2] lanes          hash  group -> see lease.lua
-- KEYS[3] notifications  hash  id -> notification (JSON)
-- KEYS[4] owed           hash  id -> number of receivers that have not got it yet; absent: one
-- KEYS[5] dead           zset  id -> given up at (ms)
-- KEYS[6] letters        hash  id -> dead letter (JSON)
-- KEYS[7] untold         hash  "<detected at> <record id>", see untold.rs -> id of its dead letter
-- KEYS[8] attempts       zset  see attempts.lua
--
-- ARGV[1] now (ms), ARGV[2] number of deliveries N, then N group keys, then N ids, then those of attempts.lua, then for
-- each dead letter:
--  1 its number among the N
--  2 dead letter (JSON)
--  3 number of its silences, then the name of each in untold
--
-- Only the first delivery of a lane is under way and can end. Returns the number of deliveries that ended.
local count = tonumber(ARGV[2])
local lanes = redis.call('HMGET', KEYS[2], unpack(ARGV, 3, 2 + count))
-- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[3])
redis.call('HLEN', KEYS[4])
redis.call('ZCARD', KEYS[5])
redis.call('HLEN', KEYS[6])
redis.call('HLEN', KEYS[7])
redis.call('ZCARD', KEYS[8])
local owed
local ended, free, empty, rest, done, left = 0, {}, {}, {}, {}, {}
local letters = {}
local a = keep_attempts(KEYS[8], 3 + 2 * count)
while ARGV[a] do
  letters[tonumber(ARGV[a])] = a
  a = a + 3 + tonumber(ARGV[a + 2])
end
for i = 1, count do
  local group, id, letter = ARGV[2 + i], ARGV[2 + count + i], letters[i]
  local first, others, own = string.match(lanes[i] or '', '^%d+ (%S+)([^\n]*)(\n?)')
  if first == id then
    if own == '' then
      owed = owed or redis.call('HMGET', KEYS[4], unpack(ARGV, 3 + count, 2 + 2 * count))
      if (tonumber(owed[i] or 1) or 1) <= 1 then
        done[#done + 1] = id
      else
        left[#left + 1] = id
        left[#left + 1] = string.format('%.0f', tonumber(owed[i]) - 1)
      end
    end
    if letter then
      redis.call('ZADD', KEYS[5], ARGV[1], id)
      redis.call('HSET', KEYS[6], id, ARGV[letter + 1])
      for n = 1, tonumber(ARGV[letter + 2]) do
        redis.call('HSET', KEYS[7], ARGV[letter + 2 + n], id)
      end
    end
    if others == '' then
      empty[#empty + 1] = group
    else
      rest[#rest + 1] = group
      rest[#rest + 1] = '0' .. others
      free[#free + 1] = ARGV[1]
      free[#free + 1] = group
    end
    ended = ended + 1
  end
end
if #done > 0 then
  redis.call('HDEL', KEYS[3], unpack(done))
  redis.call('HDEL', KEYS[4], unpack(done))
end
if #left > 0 then
  redis.call('HSET', KEYS[4], unpack(left))
end
if #empty > 0 then
  redis.call('HDEL', KEYS[2], unpack(empty))
  redis.call('ZREM', KEYS[1], unpack(empty))
end
if #rest > 0 then
  redis.call('HSET', KEYS[2], unpack(rest))
  redis.call('ZADD', KEYS[1], unpack(free))
end
return ended
