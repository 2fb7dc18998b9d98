-- Lets a member of a shared subscription attend: its group has heard no further than it has.
--
-- KEYS[1] members  hash  "<share>/<client id>" -> "<heard> <release> <connection>"
-- KEYS[2] floors   hash  share -> until when a member that is gone may have lost something (ms)
--
-- ARGV[1] share, ARGV[2] client id, ARGV[3] connection
-- ARGV[4] now (ms)
-- ARGV[5] how long after its last proof the broker is certain to have dropped it (ms)
--
-- Returns nothing.
local mine = ARGV[1] .. '/' .. ARGV[2]
local before = redis.call('HGET', KEYS[1], mine)
if before and string.match(before, '(%d+)$') == ARGV[3] then
  return nil
end
-- Whoever comes again was dropped before, and what nobody attended nobody heard.
local is_lost = before
if not before then
  is_lost = true
  local all = redis.call('HGETALL', KEYS[1])
  for n = 1, #all, 2 do
    is_lost = is_lost and string.match(all[n], '^(.*)/') ~= ARGV[1]
  end
end
if is_lost then
  local floor = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or 0) or 0
  redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', math.max(floor, tonumber(ARGV[4]))))
end
redis.call('HSET', KEYS[1], mine, ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. ARGV[3])
return nil
