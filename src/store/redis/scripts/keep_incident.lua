-- Writes the incident into the notification, once, and stores the incident of the group for its next notification.
--
-- KEYS[1] notifications  hash  id -> notification (JSON)
-- KEYS[2] members        hash  "<group>\n<member>" -> see join.lua
-- KEYS[3] over           zset  "<group>\n<member>" -> since when it is over (ms)
--
-- ARGV[1] id, ARGV[2] "<group>\nincident", ARGV[3] the incidents (JSON, a list), ARGV[4] the member before, "" if there
-- is none, ARGV[5] the member after it, "" for none, ARGV[6] since when it counts as over (ms)
--
-- Returns "kept", "changed" if the member is another one, or the notification if it has its incident, "" if it is gone.
local body = redis.call('HGET', KEYS[1], ARGV[1])
-- This fails if the key is of a wrong type, before any write.
redis.call('ZCARD', KEYS[3])
if not body or string.find(body, ',"incident":[', 1, true) then
  return body or ''
end
if (redis.call('HGET', KEYS[2], ARGV[2]) or '') ~= ARGV[4] then
  return 'changed'
end
redis.call('HSET', KEYS[1], ARGV[1], string.sub(body, 1, -2) .. ',"incident":' .. ARGV[3] .. '}')
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[5])
  redis.call('ZADD', KEYS[3], ARGV[6], ARGV[2])
elseif ARGV[4] ~= '' then
  redis.call('HDEL', KEYS[2], ARGV[2])
  redis.call('ZREM', KEYS[3], ARGV[2])
end
return 'kept'
