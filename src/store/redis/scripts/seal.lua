-- Seals due groups: fixes the members and the ids of their notifications, and adds the notifications to the end of
-- the group's lane for each receiver.
--
-- Only members whose own wait is over are sealed. The others follow in one more notification when the waits of all of
-- them are over; a member that joins after that waits until the interval has passed.
--
-- KEYS[1] groups         zset  group -> when it is due (ms)
-- KEYS[2] over           zset  "<group>\n<member>" -> since when it is over (ms)
-- KEYS[3] members        hash  "<group>\n<member>" -> see join.lua
-- KEYS[4] sealed         hash  group -> when it was last sealed (ms)
-- KEYS[5] labels         hash  group with waiting members -> group (JSON)
-- KEYS[6] notifications  hash  id -> notification (JSON)
-- KEYS[7] owed           hash  id -> number of receivers that have not got it yet; absent: one
-- KEYS[7+r]              zset  queue of receiver r of R: group -> next attempt (ms)
-- KEYS[7+R+r]            hash  lanes of receiver r: group -> see lease.lua
-- then for each group its waiting members: zset  member -> when its wait began (ms)
--
-- ARGV[1] now (ms), ARGV[2] now (RFC 3339), ARGV[3] number of receivers R, ARGV[4] the most members of a notification,
-- ARGV[5] wait (ms), ARGV[6] interval (ms), then the group keys
--
-- Returns the number of members that were sealed.
local now, receivers, most = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
local wait, interval, head = tonumber(ARGV[5]), tonumber(ARGV[6]), 6
begin_batch(receivers)
local due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, head + 1))
local labels = redis.call('HMGET', KEYS[5], unpack(ARGV, head + 1))
local before = redis.call('HMGET', KEYS[4], unpack(ARGV, head + 1))
local sealed, empty, later = 0, {}, {}

-- When a group is due whose waiting members could not be sealed now.
local function next_due(waiting, sealed_any, follows, last)
  local first = tonumber(redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2])
  if first + wait <= now then
    return nil
  elseif sealed_any and not follows then
    return tonumber(redis.call('ZREVRANGE', waiting, 0, 0, 'WITHSCORES')[2]) + wait
  end
  return math.max(first + wait, follows and last + interval or 0)
end

for i = 1, #due do
  local group, waiting = ARGV[head + i], KEYS[7 + 2 * receivers + i]
  if due[i] and tonumber(due[i]) <= now and sealed < most then
    local at, last = tonumber(due[i]), before[i] and tonumber(before[i])
    local follows = last and at > last and at < last + interval
    local members = redis.call('ZRANGEBYSCORE', waiting, '-inf', string.format('%.0f', now - wait), 'LIMIT', 0, most)
    if #members > 0 then
      local fields = {}
      for index, member in ipairs(members) do
        fields[index] = group .. '\n' .. member
      end
      local values = redis.call('HMGET', KEYS[3], unpack(fields))
      local ready = {}
      for index, member in ipairs(members) do
        local letter, detected, notified, body = string.match(values[index] or '', '^(%a)(%d*)(%S*) (.*)$')
        if letter then
          ready[#ready + 1] = { member, letter, body, detected, fields[index], notified }
        end
      end
      redis.call('ZREM', waiting, unpack(members))
      if #ready > 0 and labels[i] then
        table.sort(ready, function(a, b) return a[1] < b[1] end)
        local offline, online, blind, notified, digest = {}, {}, {}, {}, {}
        for _, one in ipairs(ready) do
          local member, letter, body, detected, name, notified_before = unpack(one)
          local list = letter == 'o' and offline or online
          if string.sub(member, 1, 6) == 'blind ' then
            list, letter = blind, 'b'
          end
          if list == online then
            notified[#notified + 1] = notified_before
          end
          list[#list + 1] = body
          digest[#digest + 1] = add_member(name, member, letter, detected, ARGV[1])
        end
        add_notification(group, labels[i], table.concat(digest, '\n'), table.concat(offline, ','), table.concat(online, ','),
          table.concat(blind, ','), notified, ARGV[1], ARGV[2], receivers)
        if follows and receivers > 0 then
          batch.sealed[#batch.sealed] = before[i]
        end
      end
    end
    if redis.call('ZCARD', waiting) == 0 then
      empty[#empty + 1] = group
    else
      local next = next_due(waiting, #members > 0, follows, last)
      if next then
        later[#later + 1] = string.format('%.0f', next)
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
