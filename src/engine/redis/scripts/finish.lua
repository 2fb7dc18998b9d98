-- Ends deliveries to one receiver: they were delivered, or given up and become dead letters.
--
-- KEYS[1] queue          zset  group -> next attempt (ms)
-- KEYS[2] notifications  hash  id -> notification (JSON)
-- KEYS[3] owed           hash  id -> number of receivers that do not have it yet
-- KEYS[4] attempts       hash  "<id>.<receiver>" -> attempts begun
-- KEYS[5] dead           zset  id -> given up at (ms)
-- KEYS[6] letters        hash  id -> dead letter (JSON)
-- KEYS[7] untold         hash  "<detected at> <record id>" -> id of its dead letter
-- then the lane of each delivery, a list of ids
--
-- ARGV[1] now (ms), ARGV[2] receiver, then for each delivery:
--  1 group key
--  2 id
--  3 dead letter (JSON), "" if it was delivered
--  4 number N of silences that die with it, then N times "<detected at> <record id>"
--
-- Returns the number of deliveries that were ended here.
local ended, a = 0, 2
for i = 8, #KEYS do
  local lane, group, id, letter = KEYS[i], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local silences = tonumber(ARGV[a + 4])
  if redis.call('LINDEX', lane, 0) == id then
    redis.call('LPOP', lane)
    redis.call('HDEL', KEYS[4], id .. '.' .. ARGV[2])
    if redis.call('HINCRBY', KEYS[3], id, -1) <= 0 then
      redis.call('HDEL', KEYS[3], id)
      redis.call('HDEL', KEYS[2], id)
    end
    if letter ~= '' then
      redis.call('ZADD', KEYS[5], ARGV[1], id)
      redis.call('HSET', KEYS[6], id, letter)
      for n = 1, silences do
        redis.call('HSET', KEYS[7], ARGV[a + 4 + n], id)
      end
    end
    if redis.call('LLEN', lane) > 0 then
      redis.call('ZADD', KEYS[1], ARGV[1], group)
    else
      redis.call('ZREM', KEYS[1], group)
    end
    ended = ended + 1
  end
  a = a + 4 + silences
end
return ended
