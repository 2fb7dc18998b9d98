-- Lets transitions join their groups.
--
-- A stored member is a letter, the time of detection of its silence (ms), after the notification of the silence a
-- colon and the receivers, separated by commas, and, while it waits, a space and the record.
--   o  its silence waits for a notification
--   t  its silence was notified
--   b  its silence was notified, and its return waits for a notification
--   x  over: both were notified, or the return cancelled the silence before its notification
-- A transition that does not lead from one of these to the next changes nothing, so a transition may join again at
-- any time, and a return may join before its silence.
--
-- A silence that is over and is detected again (its unit was allowed more for a while) is a member of its own.
--
-- A member that is alone in a group that is due at once does not wait: the group is sealed here.
--
-- The rules are those of presence/grouping.rs; a test compares them.
--
-- KEYS[1] groups         zset  group -> when it is due (ms)
-- KEYS[2] over           zset  "<group>\n<member>" -> since when it is over (ms)
-- KEYS[3] members        hash  "<group>\n<member>" -> see above
-- KEYS[4] sealed         hash  group -> when it was last sealed (ms)
-- KEYS[5] labels         hash  group with waiting members -> group (JSON)
-- KEYS[6] notifications  hash  id -> notification (JSON)
-- KEYS[7] owed           hash  id -> number of receivers that have not got it yet; absent: one
-- KEYS[7+r]              zset  queue of receiver r of R: group -> next attempt (ms)
-- KEYS[7+R+r]            hash  lanes of receiver r: group -> see lease.lua
-- then for each transition the waiting members of its group: zset  member -> when its wait began (ms)
--
-- ARGV[1] now (ms), ARGV[2] now (RFC 3339), ARGV[3] wait (ms), ARGV[4] interval (ms), ARGV[5] R,
-- ARGV[6] number of transitions N, then N group keys, N times "<group>\n<member>", then 6 for each:
--  1 group (JSON)
--  2 "alone" if no other transition of this call is of its group
--  3 member
--  4 "offline", "online", "removed" (a return without notification) or "blind"
--  5 detected at (ms), 0 for an interval
--  6 record or interval (JSON)
--
-- Returns the number of members that were sealed.
local now, wait, interval, receivers = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local count, head = tonumber(ARGV[6]), 6
begin_batch(receivers)
local due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, head + 1, head + count))
local distances = redis.call('HMGET', KEYS[4], unpack(ARGV, head + 1, head + count))
local values = redis.call('HMGET', KEYS[3], unpack(ARGV, head + 1 + count, head + 2 * count))
-- The new values of members, and when groups that were empty are due.
local held, soon = {}, {}
local sealed = 0
for i = 1, count do
  local waiting, group, name = KEYS[7 + 2 * receivers + i], ARGV[head + i], ARGV[head + count + i]
  local a = head + 2 * count + 6 * (i - 1)
  local member, form, detected, body = ARGV[a + 3], ARGV[a + 4], ARGV[a + 5], ARGV[a + 6]
  local known, letter, notified = held[name] or values[i], '', ''
  local is_end = form == 'online' or form == 'removed'
  -- Whether the silence may be one that was detected again: a member that is over is forgotten some time.
  local is_again = not known and is_end
  if known then
    local before
    letter, before, notified = string.match(known, '^(%a)(%d*)([^ ]*)')
    is_again = letter == 'x' and (tonumber(before) or 0) < tonumber(detected)
  end
  if is_again then
    local again = name .. ' ' .. detected
    local other = held[again] or redis.call('HGET', KEYS[3], again)
    if known or other then
      member, name = member .. ' ' .. detected, again
      letter, notified = string.match(other or '', '^(%a)%d*([^ ]*)')
      letter, notified = letter or '', notified or ''
    end
  end
  local next_letter = nil
  if letter == '' and not is_end then
    next_letter = 'o'
  elseif letter == 't' and form == 'online' then
    next_letter = 'b'
  elseif is_end and (letter == '' or letter == 'o' or letter == 't') then
    next_letter = 'x'
  end
  if next_letter == 'x' then
    held[name] = 'x' .. detected
    redis.call('ZREM', waiting, member)
    redis.call('ZADD', KEYS[2], ARGV[1], name)
    if redis.call('ZCARD', waiting) == 0 then
      redis.call('ZREM', KEYS[1], group)
      redis.call('HDEL', KEYS[5], group)
      soon[group] = nil
    end
  elseif next_letter then
    local at = now
    if form ~= 'blind' then
      at = now + wait
      -- A time of sealing in the future is ignored, because the group would wait for it.
      local last = tonumber(distances[i] or '')
      if last and last <= now and last + interval > at then
        at = last + interval
      end
    end
    if ARGV[a + 2] == 'alone' and at <= now and not due[i] then
      local offline, online, blind = '', '', ''
      if form == 'offline' then
        offline = body
      elseif form == 'online' then
        online = body
      else
        blind, next_letter = body, 'b'
      end
      local digest = add_member(name, member, next_letter, detected, ARGV[1])
      add_notification(group, ARGV[a + 1], digest, offline, online, blind, next_letter == 'b' and form == 'online' and { notified } or {},
        ARGV[1], ARGV[2], receivers)
      sealed = sealed + 1
    else
      held[name] = next_letter .. detected .. notified .. ' ' .. body
      -- Only a silence waits. The other forms are final, and go into the next notification of the group.
      redis.call('ZADD', waiting, form == 'offline' and ARGV[1] or string.format('%.0f', now - wait), member)
      soon[group] = soon[group] or { string.format('%.0f', at), ARGV[a + 1] }
    end
  end
end
local members, times, labels = {}, {}, {}
for name, value in pairs(held) do
  members[#members + 1] = name
  members[#members + 1] = value
end
for group, one in pairs(soon) do
  times[#times + 1], labels[#labels + 1] = one[1], group
  times[#times + 1], labels[#labels + 1] = group, one[2]
end
if #members > 0 then
  redis.call('HSET', KEYS[3], unpack(members))
end
if #times > 0 then
  redis.call('ZADD', KEYS[1], 'NX', unpack(times))
  redis.call('HSET', KEYS[5], unpack(labels))
end
write_batch(ARGV[1], receivers)
return sealed
