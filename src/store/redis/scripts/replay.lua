-- Queues a notification once more for one receiver.
--
-- KEYS[1] queue          zset  group -> next attempt (ms)
-- KEYS[2] lanes          hash  group -> see lease.lua
-- KEYS[3] notifications  hash  id -> notification (JSON)
-- KEYS[4] owed           hash  id -> number of receivers that have not got it yet; absent: one
-- KEYS[5] dead           zset  id -> given up at (ms)
-- KEYS[6] letters        hash  id -> dead letter (JSON)
-- KEYS[7] untold         hash  silence -> id of its dead letter
-- KEYS[8] past_timers    hash  id of a timer that fired or was cancelled -> see timer_text.rs
-- KEYS[9] fallen         hash  see fall_back.lua
--
-- ARGV[1] now (ms), ARGV[2] group, ARGV[3] id, ARGV[4] notification (JSON), ARGV[5] the id of its timer, or "", ARGV[6] the
-- moment of the timer as it is stored, then the names of its silences in untold
--
-- Returns 1, or 0 if the notification waits already.
local lane = redis.call('HGET', KEYS[2], ARGV[2])
-- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
redis.call('ZCARD', KEYS[1])
local is_shared = redis.call('HGET', KEYS[3], ARGV[3])
local owed = redis.call('HGET', KEYS[4], ARGV[3])
redis.call('ZCARD', KEYS[5])
redis.call('HLEN', KEYS[6])
redis.call('HLEN', KEYS[7])
redis.call('HLEN', KEYS[8])
local fallen = redis.call('HGET', KEYS[9], ARGV[2])
local ids, own = string.match(lane or '0', '^([^\n]*)(.*)$')
if string.find(ids .. ' ', ' ' .. ARGV[3] .. ' ', 1, true) then
  return 0
end
redis.call('HSET', KEYS[2], ARGV[2], ids .. ' ' .. ARGV[3] .. own)
-- It comes after the notifications of the lane, of which the mark says nothing any more.
if fallen == ARGV[3] then
  redis.call('HDEL', KEYS[9], ARGV[2])
end
if not lane then
  redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
end
if is_shared then
  redis.call('HSET', KEYS[4], ARGV[3], string.format('%.0f', (tonumber(owed or 1) or 1) + 1))
else
  redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
end
redis.call('ZREM', KEYS[5], ARGV[3])
redis.call('HDEL', KEYS[6], ARGV[3])
if ARGV[5] ~= '' then
  write_receipt(KEYS[8], ARGV[5], ARGV[6], string.match(KEYS[1], '([^:]*)$'), 'p')
end
for i = 7, #ARGV do
  if redis.call('HGET', KEYS[7], ARGV[i]) == ARGV[3] then
    redis.call('HDEL', KEYS[7], ARGV[i])
  end
end
return 1
