-- Removes a member of a shared subscription.
--
-- KEYS[1] members  hash  "<share>/<client id>" -> "<heard> <release> <connection>"
-- KEYS[2] floors   hash  share -> until when a member that is gone may have lost something (ms)
--
-- ARGV[1] share, ARGV[2] client id, ARGV[3] connection
-- ARGV[4] until when it may have lost something (ms); "" if it has left in order and lost nothing
--
-- Returns 1, or 0 if that connection was no member.
local mine = ARGV[1] .. '/' .. ARGV[2]
local before = redis.call('HGET', KEYS[1], mine)
if not before or string.match(before, '(%d+)$') ~= ARGV[3] then
  return 0
end
redis.call('HDEL', KEYS[1], mine)
if ARGV[4] ~= '' then
  local floor = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or 0) or 0
  redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', math.max(floor, tonumber(ARGV[4]))))
end
return 1
