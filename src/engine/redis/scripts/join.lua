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
-- Who is alone in a group that is due at once does not wait in it: the group is sealed here. A
-- hundred thousand units that are told one by one take a third of the time.
--
-- KEYS[1] groups         zset  group -> when it is due (ms)
-- KEYS[2] over           zset  "<group>\n<member>" -> since when it is over (ms)
-- KEYS[3] notifications  hash  id -> notification (JSON)
-- KEYS[4] owed           hash  id -> number of receivers that do not have it yet
-- KEYS[4+r]              zset  queue of receiver r of R: group -> next attempt (ms)
-- KEYS[4+R+r]            hash  lanes of receiver r: group -> ids, one after the other
-- then for each transition:
-- group  hash  member -> see above; "_" fields speak of the group itself
-- wait   zset  member -> when it joined (ms), those that wait
--
-- ARGV[1] now (ms), ARGV[2] now (RFC 3339), ARGV[3] wait (ms), ARGV[4] interval (ms), ARGV[5] R, then
-- 7 for each transition:
--  1 group key
--  2 group (JSON)
--  3 "alone" if nothing else that joins with it is of its group
--  4 member
--  5 "offline", "online", "removed" (back, and nobody is told) or "blind"
--  6 when it was detected (ms), 0 for an interval
--  7 record or interval (JSON)
--
-- Returns the number of members that were sealed.
local now, wait, interval, receivers = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local count = (#KEYS - 4 - 2 * receivers) / 2
local names, due = {}, {}
for i = 1, count do
  names[i] = ARGV[5 + 7 * (i - 1) + 1]
end
local waits = redis.call('ZMSCORE', KEYS[1], unpack(names))
local sealed = 0
for i = 1, count do
  local hash, waiting = KEYS[2 + 2 * receivers + 2 * i + 1], KEYS[2 + 2 * receivers + 2 * i + 2]
  local a = 5 + 7 * (i - 1)
  local group, alone, member, form = names[i], ARGV[a + 3] == 'alone', ARGV[a + 4], ARGV[a + 5]
  local detected, body = ARGV[a + 6], ARGV[a + 7]
  local held = redis.call('HMGET', hash, member, '_sealed')
  local letter, before = string.match(held[1] or '', '^(%a)(%d*)')
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
      due[group] = nil
    end
  elseif next_letter then
    local at = now
    if form ~= 'blind' then
      at = now + wait
      if held[2] and tonumber(held[2]) + interval > at then
        at = tonumber(held[2]) + interval
      end
    end
    if alone and at <= now and not waits[i] then
      local news = { { member, next_letter, body, detected } }
      redis.call('HSET', hash, unpack(tell(group, ARGV[a + 2], news, ARGV[1], ARGV[2], receivers)))
      sealed = sealed + 1
    else
      redis.call('HSET', hash, member, next_letter .. detected .. ' ' .. body, '_group', ARGV[a + 2])
      redis.call('ZADD', waiting, ARGV[1], member)
      due[group] = due[group] or string.format('%.0f', at)
    end
  end
end
local soon = {}
for group, at in pairs(due) do
  soon[#soon + 1] = at
  soon[#soon + 1] = group
end
if #soon > 0 then
  redis.call('ZADD', KEYS[1], 'NX', unpack(soon))
end
write_told(KEYS[2], KEYS[3], KEYS[4], 5, receivers, ARGV[1])
return sealed
