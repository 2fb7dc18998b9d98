-- Changes the stored transitions of units, each if it is as it was when the change was decided.
--
-- KEYS[1] flaps       hash  unit -> its last transitions (JSON)
-- KEYS[2] flap_looks  zset  unit -> when it is looked at (ms)
--
-- ARGV: for each unit its name, the text before, "" if there was none, the text after, "" to forget it, and when it is
-- looked at (ms)
--
-- Returns for each unit 1 if it is written, else 0.
--
-- This fails if the key is of a wrong type, before any write.
redis.call('ZCARD', KEYS[2])
local written = {}
for i = 1, #ARGV, 4 do
  local unit, before, after = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local is_same = (redis.call('HGET', KEYS[1], unit) or '') == before
  if is_same and after ~= '' then
    redis.call('HSET', KEYS[1], unit, after)
    redis.call('ZADD', KEYS[2], ARGV[i + 3], unit)
  elseif is_same then
    redis.call('HDEL', KEYS[1], unit)
    redis.call('ZREM', KEYS[2], unit)
  end
  written[#written + 1] = is_same and 1 or 0
end
return written
