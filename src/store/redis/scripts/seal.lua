-- Seals due groups: fixes the members and the ids of their notifications, and adds the notifications to the end of
-- the group's lane for each receiver.
--
-- Only members whose own wait is over are sealed. The others follow in one more notification when the waits of all of
-- them are over; a silence that joins after that waits until the interval has passed. Silences within a moment of the
-- first one are gathered: the group is not sealed before they have waited.
--
-- The rules are those of presence/grouping.rs; a test compares them.
--
-- KEYS[1] groups         zset  group -> when it is due (ms)
-- KEYS[2] over           zset  "<group>\n<member>" -> since when it is over (ms)
-- KEYS[3] members        hash  "<group>\n<member>" -> see join.lua
-- KEYS[4] sealed         hash  group -> when it was last sealed (ms)
-- KEYS[5] labels         hash  group with waiting members -> group (JSON)
-- KEYS[6] notifications  hash  id -> notification (JSON)
-- KEYS[7] owed           hash  id -> number of receivers that have not got it yet; absent: one
-- KEYS[7+r]              zset  queue of receiver r of R: group -> next attempt (ms)
-- KEYS[7+R+r]            hash  lanes of receiver r: group -> see store/deliveries/lane.rs
-- then for each group its waiting members: zset  member -> when its wait began (ms), see sealing.lua
-- then, if groups gather members or are looked at again, for each group its notified members whose units are still
--                        offline: zset  member -> when it was notified (ms)
-- then, if groups are looked at again, reminders: zset  group -> when it is looked at (ms)
--
-- ARGV[1] now (ms), ARGV[2] now (RFC 3339), ARGV[3] number of receivers R, ARGV[4] the most members of a notification,
-- ARGV[5] wait (ms), ARGV[6] interval (ms), ARGV[7] how many of the R are receivers of these groups: the first ones, see
-- sealing.lua, ARGV[8] how long groups gather members (ms), 0 if each has one unit, ARGV[9] when they are looked
-- at again after a notification (ms), 0 for never, ARGV[10] after how many members no further group is sealed, then the
-- group keys
--
-- Returns the number of members that were sealed.
local now, receivers, most = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
local wait, interval, own = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local gathers, looks_after, enough, head = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]), 10
begin_batch(receivers, own)
local due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, head + 1))
local labels = redis.call('HMGET', KEYS[5], unpack(ARGV, head + 1))
local before = redis.call('HMGET', KEYS[4], unpack(ARGV, head + 1))
local sealed, empty, later = 0, {}, {}

-- The moment of the first member between these scores, and of the newest.
local function first(waiting, from, to)
  return tonumber(redis.call('ZRANGEBYSCORE', waiting, from, to, 'WITHSCORES', 'LIMIT', 0, 1)[2] or '')
end
local function newest(waiting, from, to)
  return tonumber(redis.call('ZREVRANGEBYSCORE', waiting, to, from, 'WITHSCORES', 'LIMIT', 0, 1)[2] or '')
end

local function score(at)
  return string.format('%.0f', at)
end

-- When the silences have waited that are gathered with the first one; nil: they have.
local function gathered_at(waiting)
  local begun, ready = first(waiting, 0, '+inf'), now - wait
  if not begun or begun > ready or ready >= begun + gathers then
    return nil
  end
  local last = newest(waiting, '(' .. score(ready), score(begun + gathers))
  local at = math.max(begun + gathers, last and last + wait or 0)
  return at > now and at or nil
end

-- When a group is due whose waiting members could not be sealed now; nil: as before.
local function next_due(waiting, lasting, count, follows, last)
  if count >= most then
    return nil
  end
  local at, begun = nil, first(waiting, 0, '+inf')
  if begun and follows then
    at = math.max(begun + wait, last + interval)
  elseif begun and count > 0 then
    at = (newest(waiting, 0, score(now)) or begun) + wait
  elseif begun then
    at = begun + wait
  end
  local final = first(waiting, '-inf', '(0')
  if final then
    local ready = final + FINAL + wait
    local start = follows and last or count > 0 and now or last and last <= now and last
    if start and lasting and redis.call('ZCARD', lasting) > 0 then
      ready = math.max(ready, start + interval)
    end
    at = math.min(at or ready, ready)
  end
  return at
end

-- Up to as many members as a notification may have: those that are final first.
local function ready_members(waiting, silence)
  local members = redis.call('ZRANGEBYSCORE', waiting, '-inf', score(now - wait - FINAL), 'LIMIT', 0, most)
  if #members < most then
    local silences = redis.call('ZRANGEBYSCORE', waiting, 0, score(silence), 'LIMIT', 0, most - #members)
    for _, member in ipairs(silences) do
      members[#members + 1] = member
    end
  end
  return members
end

for i = 1, #due do
  local group, waiting = ARGV[head + i], KEYS[7 + 2 * receivers + i]
  local lasting = (gathers > 0 or looks_after > 0) and KEYS[7 + 2 * receivers + #due + i]
  local is_due = due[i] and tonumber(due[i]) <= now and sealed < enough
  local at, last = tonumber(due[i] or ''), tonumber(before[i] or '')
  local follows = is_due and last and at > last and at < last + interval
  local gathered = is_due and gathers > 0 and not follows and gathered_at(waiting)
  if gathered then
    later[#later + 1] = score(gathered)
    later[#later + 1] = group
  elseif is_due then
    local members = ready_members(waiting, follows and math.min(now - wait, last) or now - wait)
    if #members > 0 then
      local fields = {}
      for index, member in ipairs(members) do
        fields[index] = group .. '\n' .. member
      end
      local values = values_of(KEYS[3], fields)
      local ready = {}
      for index, member in ipairs(members) do
        local letter, detected, notified, body = string.match(values[index] or '', '^(%a)(%d*)(%S*) (.*)$')
        if letter then
          ready[#ready + 1] = { member, letter, body, detected, fields[index], notified }
        end
      end
      remove_members(waiting, members)
      if #ready > 0 and labels[i] then
        table.sort(ready, function(a, b) return a[1] < b[1] end)
        local offline, online, blind, notified, digest, lasts, others = {}, {}, {}, {}, {}, {}, {}
        for _, one in ipairs(ready) do
          local member, letter, body, detected, name, notified_before = unpack(one)
          local list = letter == WAITS and offline or online
          if string.sub(member, 1, 6) == 'blind ' then
            list, letter = blind, IS_BACK
          end
          if list == online then
            notified[#notified + 1] = notified_before
            -- Its next silence may be a later member: a record's name begins with its deadline.
            if receivers > own and notified_before ~= '' then
              others[unit_of(member)] = others_of(notified_before, receivers, own)
            end
          end
          -- What no receiver is notified of does not last, unless it may be escalated.
          if list == offline and (own > 0 or looks_after > 0 or (others[unit_of(member)] or '') ~= '') then
            lasts[#lasts + 1] = ARGV[1]
            lasts[#lasts + 1] = member
          end
          list[#list + 1] = body
          digest[#digest + 1] = add_member(name, member, letter, detected, ARGV[1], looks_after > 0 and body,
            list == offline and next(others) and others[unit_of(member)])
        end
        if lasting and #lasts > 0 then
          add_members(lasting, lasts)
          look_after(looks_after, now, group)
        end
        local is_added = add_notification(group, labels[i], table.concat(digest, '\n'), table.concat(offline, ','), table.concat(online, ','),
          table.concat(blind, ','), notified, situation(lasting, gathers, last), ARGV[1], ARGV[2], receivers, own)
        if follows and is_added then
          batch.sealed[#batch.sealed] = before[i]
        end
      end
    end
    if redis.call('ZCARD', waiting) == 0 then
      empty[#empty + 1] = group
    else
      local next = next_due(waiting, lasting, #members, follows, last)
      if next then
        later[#later + 1] = score(next)
        later[#later + 1] = group
      end
    end
    sealed = sealed + #members
  end
end
if #empty > 0 then
  redis.call('ZREM', KEYS[1], unpack(empty))
  redis.call('HDEL', KEYS[5], unpack(empty))
end
if #later > 0 then
  redis.call('ZADD', KEYS[1], unpack(later))
end
write_batch(ARGV[1], receivers)
return sealed
