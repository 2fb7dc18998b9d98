-- Marks silences as notified that receivers know of, after a failover that may have lost them: see acknowledged.rs.
-- Their returns are notified then. A return that was faster has cancelled its silence, and joins once more.
--
-- KEYS[1] groups     zset  group -> when it is due (ms)
-- KEYS[2] members    hash  "<group>\n<member>" -> see join.lua
-- KEYS[3] labels     hash  group with waiting members -> group (JSON)
-- KEYS[4] reminders  zset  group -> when it is looked at (ms)
-- then for silence i of N
-- KEYS[3+2i]         zset  waiting members of its group: member -> when its wait began (ms)
-- KEYS[4+2i]         zset  notified members of its group whose units are still offline -> when (ms)
--
-- ARGV[1] now (ms), ARGV[2] N, then 8 for each silence:
--  1 group key
--  2 member
--  3 detected at (ms)
--  4 receivers, separated by commas
--  5 "1" if it is marked also if it waits for a notification; else it is notified to all receivers of its group
--  6 "1" if notified members are kept while they last
--  7 when they are looked at again after a notification (ms), 0 for never
--  8 record (JSON) if they are, else empty
--
-- Returns the number of silences whose members were changed.
--
-- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[3])
for i = 4, #KEYS do
  redis.call('ZCARD', KEYS[i])
end
local now, changed = ARGV[1], 0
for i = 1, tonumber(ARGV[2]) do
  local a, waiting, lasting = 8 * (i - 1) + 3, KEYS[3 + 2 * i], KEYS[4 + 2 * i]
  local group, member, detected, receivers = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local looks_after, record = tonumber(ARGV[a + 6]), ARGV[a + 7]
  local name = group .. '\n' .. member
  local known = redis.call('HGET', KEYS[2], name) or ''
  local letter, before, notified, body = string.match(known, '^(%a)(%d*):?([^ ]*)(.*)$')
  local is_cancelled = letter == OVER and before == detected and string.sub(known, -1) == ':'
  local all = nil
  if not letter or is_cancelled or letter == WAITS and ARGV[a + 4] == '1' then
    all, before, body = receivers, detected, ''
  elseif letter == NOTIFIED and notified ~= '' then
    all = notified
    for receiver in string.gmatch(receivers, '[^,]+') do
      if not string.find(',' .. all .. ',', ',' .. receiver .. ',', 1, true) then
        all = all .. ',' .. receiver
      end
    end
  end
  if all and (letter ~= NOTIFIED or all ~= notified) then
    if body == '' and record ~= '' then
      body = ' ' .. record
    end
    redis.call('HSET', KEYS[2], name, NOTIFIED .. before .. ':' .. all .. body)
    changed = changed + 1
    if ARGV[a + 5] == '1' then
      redis.call('ZADD', lasting, 'NX', now, member)
    end
    if looks_after > 0 then
      redis.call('ZADD', KEYS[4], 'LT', string.format('%.0f', now + looks_after), group)
    end
    if letter == WAITS then
      redis.call('ZREM', waiting, member)
      if redis.call('ZCARD', waiting) == 0 then
        redis.call('ZREM', KEYS[1], group)
        redis.call('HDEL', KEYS[3], group)
      end
    end
  end
end
return changed
