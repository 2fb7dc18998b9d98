-- Lets transitions join their groups.
--
-- A stored member is a letter, the time of detection of its silence (ms), after the notification of the silence a
-- colon and the receivers, separated by commas, and, while it waits, a space and the record.
--   o  its silence waits for a notification
--   t  its silence was notified; a colon without receivers: the group had none, and its return is not notified
--   b  its silence was notified, and its return waits for a notification
--   x  over: both were notified, or the return cancelled the silence before its notification (a colon, no receivers)
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
-- KEYS[7+R+r]            hash  lanes of receiver r: group -> see store/deliveries/lane.rs
-- then for each transition the waiting members of its group: zset  member -> when its wait began (ms), see sealing.lua
-- then, if groups gather members or are looked at again, for each transition the notified members of its group whose
--                        units are still offline: zset  member -> when it was notified (ms)
-- then, if groups are looked at again, reminders: zset  group -> when it is looked at (ms)
--
-- ARGV[1] now (ms), ARGV[2] now (RFC 3339), ARGV[3] wait (ms), ARGV[4] interval (ms), ARGV[5] how long groups gather
-- members (ms), 0 if each has one unit, ARGV[6] until when they are held (ms), 0 if they are not, ARGV[7] when they are
-- looked at again after a notification (ms), 0 for never, ARGV[8] R,
-- ARGV[9] how many of the R are receivers of these groups: the first ones, see sealing.lua,
-- ARGV[10] number of transitions N, then N group keys, N times "<group>\n<member>", then 8 for each:
--  1 group (JSON)
--  2 "alone" if no other transition of this call is of its group
--  3 member
--  4 "offline", "online", "removed" (a return without notification) or "blind"
--  5 detected at (ms), 0 for an interval
--  6 when its wait begins (ms)
--  7 record or interval (JSON)
--  8 deadline of a silence that may be the rest of a storm (ms), 0 for others
--
-- Returns the number of members that were sealed.
local now, wait, interval, gathers = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local held_until, looks_after, receivers = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local own, count, head = tonumber(ARGV[9]), tonumber(ARGV[10]), 10
begin_batch(receivers, own)
local due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, head + 1, head + count))
local distances = redis.call('HMGET', KEYS[4], unpack(ARGV, head + 1, head + count))
local values = redis.call('HMGET', KEYS[3], unpack(ARGV, head + 1 + count, head + 2 * count))
-- The new values of members, and when groups that were empty are due.
local held, soon = {}, {}
local sealed = 0
for i = 1, count do
  local waiting, group, name = KEYS[7 + 2 * receivers + i], ARGV[head + i], ARGV[head + count + i]
  local lasting = (gathers > 0 or looks_after > 0) and KEYS[7 + 2 * receivers + count + i]
  local a = head + 2 * count + 8 * (i - 1)
  local member, form, detected, since, body = ARGV[a + 3], ARGV[a + 4], ARGV[a + 5], tonumber(ARGV[a + 6]), ARGV[a + 7]
  local known, letter, notified = held[name] or values[i], '', ''
  local is_end = form == 'online' or form == 'removed'
  -- Whether the silence may be one that was detected again: a member that is over is forgotten some time.
  local is_again = not known and is_end
  if known then
    local before
    letter, before, notified = string.match(known, '^(%a)(%d*)([^ ]*)')
    is_again = letter == OVER and (tonumber(before) or 0) < tonumber(detected)
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
    next_letter = WAITS
  elseif letter == NOTIFIED and form == 'online' and is_told(notified) then
    next_letter = IS_BACK
  elseif is_end and (letter == '' or letter == WAITS or letter == NOTIFIED) then
    next_letter = OVER
  end
  if letter == NOTIFIED and next_letter and lasting then
    redis.call('ZREM', lasting, member)
  end
  if next_letter == OVER then
    held[name] = OVER .. detected .. (letter == NOTIFIED and is_told(notified) and '' or ':')
    redis.call('ZREM', waiting, member)
    redis.call('ZADD', KEYS[2], ARGV[1], name)
    if redis.call('ZCARD', waiting) == 0 then
      redis.call('ZREM', KEYS[1], group)
      redis.call('HDEL', KEYS[5], group)
      soon[group] = nil
    end
  elseif next_letter then
    local at, last = now, tonumber(distances[i] or '')
    -- A time of sealing in the future is ignored, because the group would wait for it.
    last = last and last <= now and last
    local deadline = tonumber(ARGV[a + 8])
    if deadline > 0 and gathers > 0 and last and deadline <= last and last - deadline <= STORM and now < last + interval then
      since = last
      at = math.max(last + wait, now + gathers)
    elseif form ~= 'blind' then
      local is_last = form == 'online' and (not lasting or redis.call('ZCARD', lasting) == 0)
      at = since + wait
      if form == 'online' then
        at = math.max(at, now + wait)
      end
      if not is_last then
        at = math.max(at, (form == 'online' and now or since) + gathers, last and last + interval or 0)
      end
    end
    at = math.max(at, held_until)
    if ARGV[a + 2] == 'alone' and at <= now and not due[i] then
      local offline, online, blind = '', '', ''
      if form == 'offline' then
        offline = body
      elseif form == 'online' then
        online = body
      else
        blind, next_letter = body, IS_BACK
      end
      local digest = add_member(name, member, next_letter, detected, ARGV[1], looks_after > 0 and body)
      if lasting and form == 'offline' and (own > 0 or looks_after > 0) then
        redis.call('ZADD', lasting, ARGV[1], member)
        look_after(looks_after, now, group)
      end
      local is_added = add_notification(group, ARGV[a + 1], digest, offline, online, blind,
        next_letter == IS_BACK and form == 'online' and { notified } or {},
        situation(lasting, gathers, tonumber(distances[i] or '')), ARGV[1], ARGV[2], receivers, own)
      if is_added and last and last < now and now < last + interval then
        batch.sealed[#batch.sealed] = distances[i]
      end
      sealed = sealed + 1
    else
      held[name] = next_letter .. detected .. notified .. ' ' .. body
      local score = form == 'offline' and since or since - FINAL
      redis.call('ZADD', waiting, string.format('%.0f', score), member)
      local before = soon[group]
      soon[group] = { before and math.min(before[1], at) or at, before and before[2] or ARGV[a + 1] }
    end
  end
end
local members, times, labels = {}, {}, {}
for name, value in pairs(held) do
  members[#members + 1] = name
  members[#members + 1] = value
end
for group, one in pairs(soon) do
  times[#times + 1], labels[#labels + 1] = string.format('%.0f', one[1]), group
  times[#times + 1], labels[#labels + 1] = group, one[2]
end
if #members > 0 then
  redis.call('HSET', KEYS[3], unpack(members))
end
if #times > 0 then
  redis.call('ZADD', KEYS[1], 'LT', unpack(times))
  redis.call('HSET', KEYS[5], unpack(labels))
end
write_batch(ARGV[1], receivers)
return sealed
