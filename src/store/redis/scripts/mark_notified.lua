-- Marks silences as notified that receivers know of, after a failover that may have lost them: see acknowledged.rs.
-- Their returns are notified then. A return that was faster has cancelled its silence, and joins once more.
--
-- KEYS[1] groups   zset  group -> when it is due (ms)
-- KEYS[2] members  hash  "<group>\n<member>" -> see join.lua
-- KEYS[3] labels   hash  group with waiting members -> group (JSON)
-- KEYS[3+i]        zset  waiting members of the group of silence i of N: member -> when its wait began (ms)
--
-- ARGV[1] N, then 5 for each silence:
--  1 group key
--  2 member
--  3 detected at (ms)
--  4 receivers, separated by commas
--  5 "1" if it is marked also if it waits for a notification; else it is notified to all receivers of its group
--
-- Returns the number of silences whose members were changed.
--
-- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[3])
local changed = 0
for i = 1, tonumber(ARGV[1]) do
  local a, waiting = 5 * (i - 1) + 2, KEYS[3 + i]
  local group, member, detected, receivers = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local name = group .. '\n' .. member
  local known = redis.call('HGET', KEYS[2], name) or ''
  local letter, before, notified, body = string.match(known, '^(%a)(%d*):?([^ ]*)(.*)$')
  local value = nil
  local is_cancelled = letter == 'x' and before == detected and string.sub(known, -1) == ':'
  if not letter or is_cancelled or letter == 'o' and ARGV[a + 4] == '1' then
    value = 't' .. detected .. ':' .. receivers
  elseif letter == 't' and notified ~= '' then
    local all = notified
    for receiver in string.gmatch(receivers, '[^,]+') do
      if not string.find(',' .. all .. ',', ',' .. receiver .. ',', 1, true) then
        all = all .. ',' .. receiver
      end
    end
    value = all ~= notified and 't' .. before .. ':' .. all .. body or nil
  end
  if value then
    redis.call('HSET', KEYS[2], name, value)
    changed = changed + 1
    if letter == 'o' then
      redis.call('ZREM', waiting, member)
      if redis.call('ZCARD', waiting) == 0 then
        redis.call('ZREM', KEYS[1], group)
        redis.call('HDEL', KEYS[3], group)
      end
    end
  end
end
return changed
