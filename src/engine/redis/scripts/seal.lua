-- Seals groups that are due: fixes members and id of their notifications and puts them at the end
-- of the group's lane for each receiver.
--
-- KEYS[1] groups         zset  group -> when it is due (ms)
-- KEYS[2] over           zset  "<group>\n<member>" -> since when it is over (ms)
-- KEYS[3] members        hash  "<group>\n<member>" -> see join.lua
-- KEYS[4] sealed         hash  group -> when it was sealed last (ms)
-- KEYS[5] labels         hash  group that waits -> group (JSON)
-- KEYS[6] notifications  hash  id -> notification (JSON)
-- KEYS[7] owed           hash  id -> number of receivers that do not have it yet; none is one
-- KEYS[7+r]              zset  queue of receiver r of R: group -> next attempt (ms)
-- KEYS[7+R+r]            hash  lanes of receiver r: group -> see lease.lua
-- then for each group its members that wait: zset  member -> when it joined (ms)
--
-- ARGV[1] now (ms), ARGV[2] now (RFC 3339), ARGV[3] number of receivers R, ARGV[4] the most members
-- of a notification, then the group keys
--
-- Returns the number of members that were sealed.
local now, receivers, most = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
note_names(receivers)
local due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, 5))
local labels = redis.call('HMGET', KEYS[5], unpack(ARGV, 5))
local sealed, empty = 0, {}
for i = 1, #due do
  local group, waiting = ARGV[4 + i], KEYS[7 + 2 * receivers + i]
  if due[i] and tonumber(due[i]) <= now and sealed < most then
    local members = redis.call('ZRANGE', waiting, 0, most - 1)
    if #members > 0 then
      local fields = {}
      for place, member in ipairs(members) do
        fields[place] = group .. '\n' .. member
      end
      local values = redis.call('HMGET', KEYS[3], unpack(fields))
      local news = {}
      for place, member in ipairs(members) do
        local letter, detected, told_to, body = string.match(values[place] or '', '^(%a)(%d*)(%S*) (.*)$')
        if letter then
          news[#news + 1] = { member, letter, body, detected, fields[place], told_to }
        end
      end
      redis.call('ZREM', waiting, unpack(members))
      if #news > 0 and labels[i] then
        table.sort(news, function(a, b) return a[1] < b[1] end)
        local offline, online, blind, told_to, digest = {}, {}, {}, {}, {}
        for _, one in ipairs(news) do
          local member, letter, body, detected, name, told_before = unpack(one)
          local list = letter == 'o' and offline or online
          if string.sub(member, 1, 6) == 'blind ' then
            list, letter = blind, 'b'
          end
          if list == online then
            told_to[#told_to + 1] = told_before
          end
          list[#list + 1] = body
          digest[#digest + 1] = note(name, member, letter, detected, ARGV[1])
        end
        tell(group, labels[i], table.concat(digest, '\n'), table.concat(offline, ','), table.concat(online, ','),
          table.concat(blind, ','), told_to, ARGV[1], ARGV[2], receivers)
      end
    end
    if #members < most or redis.call('ZCARD', waiting) == 0 then
      empty[#empty + 1] = group
    end
    sealed = sealed + #members
  end
end
if #empty > 0 then
  redis.call('ZREM', KEYS[1], unpack(empty))
  redis.call('HDEL', KEYS[5], unpack(empty))
end
write_told(ARGV[1], receivers)
return sealed
