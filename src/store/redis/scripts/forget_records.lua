-- Removes records that were closed long ago.
--
-- KEYS[1] past     zset  record id -> detected at (ms)
-- KEYS[2] archive  hash  record id -> record (JSON)
-- KEYS[3] closed   zset  record id -> closed at (ms)
--
-- ARGV[1] closed before (ms), ARGV[2] the most records to remove
--
-- Returns the number of records that were removed.
local ids = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
for _, id in ipairs(ids) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZREM', KEYS[3], id)
end
return #ids
