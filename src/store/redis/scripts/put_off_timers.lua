-- Looks at timers later that still wait as they were read.
--
-- KEYS[1] timers  zset  id of a timer that waits -> when it is looked at (ms)
-- KEYS[1+n]       hash  the page of timer n: id -> see timer_text.rs
--
-- ARGV[1] when they are looked at (ms), then for each its id, and the stored timer as it was read
--
-- Returns how many are put off.
redis.call('ZCARD', KEYS[1])
local count = 0
for n = 1, #KEYS - 1 do
  local id = ARGV[2 * n]
  if redis.call('HGET', KEYS[1 + n], id) == ARGV[2 * n + 1] then
    redis.call('ZADD', KEYS[1], 'XX', ARGV[1], id)
    count = count + 1
  end
end
return count
