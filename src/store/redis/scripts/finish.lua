-- Ends deliveries to one receiver: they are delivered, or become dead letters.
--
-- KEYS[1] queue           zset  group -> next attempt (ms)
-- KEYS[2] lanes           hash  group -> see lease.lua
-- KEYS[3] notifications   hash  id -> notification (JSON)
-- KEYS[4] owed            hash  id -> number of receivers that have not got it yet; absent: one
-- KEYS[5] dead            zset  id -> given up at (ms)
-- KEYS[6] dead_letters         hash  id -> dead letter (JSON)
-- KEYS[7] unnotified          hash  "<detected at> <record id>", see unnotified.rs -> id of its dead letter
-- KEYS[8] timer_attempts  zset  see begin_only_attempts.lua
-- KEYS[9] past_timers     hash  id of a timer that fired or was cancelled -> see timer_text.rs
-- then those of write_cells.lua, which puts attempts on record
--
-- ARGV[1] now (ms), ARGV[2] number of deliveries N, then N group keys, then N ids, then the number of the arguments about
-- timers and dead letters, and these: the number of timers T and for each of them:
--  1 its number among the N
--  2 its id
--  3 its moment, as it is stored
--  4 the letter of its receipt
--  5 1 if its only attempt was marked before it began: it ended then, and only its outcome is written; else 0
-- and then for each dead letter:
--  1 its number among the N
--  2 dead letter (JSON)
--  3 number of its silences, then the name of each in unnotified
-- and then those of write_cells.lua, if there are attempts to put on record
--
-- Only the first delivery of a lane is under way and can end. Returns the number of deliveries that ended.
local count = tonumber(ARGV[2])
-- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[3])
redis.call('HLEN', KEYS[4])
redis.call('ZCARD', KEYS[5])
redis.call('HLEN', KEYS[6])
redis.call('HLEN', KEYS[7])
redis.call('ZCARD', KEYS[8])
local a = 4 + 2 * count
local sets = a + tonumber(ARGV[a - 1])
local timers, texts = tonumber(ARGV[a]), {}
for t = 1, timers do
  local id = ARGV[a + 5 * t - 3]
  texts[id] = redis.call('HGET', KEYS[9], id) or ''
end
if ARGV[sets] then
  write_cells(9, #KEYS - 9, sets)
end
local ended = end_lanes()
local receiver = string.match(KEYS[1], '([^:]*)$')
for t = 1, timers do
  local i, id, moment, is_only = tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 3], ARGV[a + 5] == '1'
  if is_only then
    redis.call('ZREM', KEYS[8], receiver .. ' ' .. moment .. ' ' .. id)
  end
  if is_only or ended[i] then
    write_receipt(KEYS[9], id, moment, receiver, ARGV[a + 4], texts[id])
    -- Another end of the timer reads the text that this one wrote.
    texts[id] = nil
  end
  a = a + 5
end
a = a + 1
while a < sets do
  local i, names = tonumber(ARGV[a]), tonumber(ARGV[a + 2])
  if ended[i] then
    local id = ARGV[2 + count + i]
    redis.call('ZADD', KEYS[5], ARGV[1], id)
    redis.call('HSET', KEYS[6], id, ARGV[a + 1])
    for n = 1, names do
      redis.call('HSET', KEYS[7], ARGV[a + 2 + n], id)
    end
  end
  a = a + 3 + names
end
local total = 0
for i = 1, count do
  total = total + (ended[i] and 1 or 0)
end
return total
