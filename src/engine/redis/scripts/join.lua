-- Lets transitions join their groups.
--
-- A member is known by what the group's hash holds of it: a letter, when the silence was detected
-- (ms) and, where it waits, a space and the record.
--   o  waits to be told that it is offline
--   t  was told to be offline
--   b  was told to be offline and waits to be told that it is back
--   x  over: told both, or taken back before either was told
-- Everything that does not lead from one of these to the next changes nothing, so a transition may
-- join again at any time, and a return may come before its silence.
--
-- A silence that is over and was detected once more (its unit was allowed more for a while) is
-- news: it is a member of its own.
--
-- KEYS[1] groups  zset  group -> when it is due (ms)
-- KEYS[2] over    zset  "<group>\n<member>" -> since when it is over (ms)
-- then for each transition i:
-- KEYS[1+2i] group  hash  member -> see above; "_" fields speak of the group itself
-- KEYS[2+2i] wait   zset  member -> when it joined (ms), those that wait
--
-- ARGV[1] now (ms), ARGV[2] wait (ms), ARGV[3] interval (ms), then 6 for each transition:
--  1 group key
--  2 group (JSON)
--  3 member
--  4 "offline", "online", "removed" (back, and nobody is told) or "blind"
--  5 when it was detected (ms), 0 for an interval
--  6 record or interval (JSON)
--
-- Returns nothing.
local now, wait, interval = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
for i = 1, (#KEYS - 2) / 2 do
  local hash, waiting = KEYS[1 + 2 * i], KEYS[2 + 2 * i]
  local a = 3 + (i - 1) * 6
  local group, member, form = ARGV[a + 1], ARGV[a + 3], ARGV[a + 4]
  local detected = ARGV[a + 5]
  local letter, before = string.match(redis.call('HGET', hash, member) or '', '^(%a)(%d*)')
  if letter == 'x' and tonumber(before) < tonumber(detected) then
    member = member .. ' ' .. detected
    letter = string.match(redis.call('HGET', hash, member) or '', '^%a')
  end
  letter = letter or ''
  local is_end = form == 'online' or form == 'removed'
  local next_letter = nil
  if letter == '' and not is_end then
    next_letter = 'o'
  elseif letter == 't' and form == 'online' then
    next_letter = 'b'
  elseif is_end and (letter == '' or letter == 'o' or letter == 't') then
    next_letter = 'x'
  end
  if next_letter == 'x' then
    redis.call('HSET', hash, member, 'x' .. detected)
    redis.call('ZREM', waiting, member)
    redis.call('ZADD', KEYS[2], ARGV[1], group .. '\n' .. member)
    if redis.call('ZCARD', waiting) == 0 then
      redis.call('ZREM', KEYS[1], group)
    end
  elseif next_letter then
    redis.call('HSET', hash, member, next_letter .. detected .. ' ' .. ARGV[a + 6], '_group', ARGV[a + 2])
    redis.call('ZADD', waiting, ARGV[1], member)
    local due = now
    if form ~= 'blind' then
      due = now + wait
      local sealed = tonumber(redis.call('HGET', hash, '_sealed'))
      if sealed and sealed + interval > due then
        due = sealed + interval
      end
    end
    redis.call('ZADD', KEYS[1], 'NX', string.format('%.0f', due), group)
  end
end
