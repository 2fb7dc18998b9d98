-- Ends deliveries of timers to one receiver before their only attempt: none of them is leased again.
--
-- KEYS[1] to KEYS[4]      see end_lanes.lua
-- KEYS[5] timer_attempts  zset  "<receiver> <moment as it is stored> <timer>" -> when its only attempt began (ms)
-- KEYS[6] past_timers     hash  id of a timer that fired or was cancelled -> see timer_text.rs
--
-- ARGV[1] now (ms), ARGV[2] number of deliveries N, then N group keys, N ids, N times the number of the attempt, N ids of
-- timers, and N moments as they are stored
--
-- Returns for each 1 if the caller may attempt it; 0 if another one has ended it, or begun another attempt.
local count = tonumber(ARGV[2])
-- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[3])
redis.call('HLEN', KEYS[4])
redis.call('ZCARD', KEYS[5])
redis.call('HLEN', KEYS[6])
local receiver = string.match(KEYS[1], '([^:]*)$')
local answers = {}
for i, is_ended in ipairs(end_lanes(2 + 2 * count)) do
  answers[i] = is_ended and 1 or 0
  if is_ended then
    local id, moment = ARGV[2 + 3 * count + i], ARGV[2 + 4 * count + i]
    redis.call('ZADD', KEYS[5], ARGV[1], receiver .. ' ' .. moment .. ' ' .. id)
    write_receipt(KEYS[6], id, moment, receiver, 'b')
  end
end
return answers
