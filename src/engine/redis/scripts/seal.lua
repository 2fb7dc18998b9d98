-- Seals groups that are due: fixes members and id of their notifications and puts them at the end
-- of the group's lane for each receiver.
--
-- KEYS[1] groups         zset  group -> when it is due (ms)
-- KEYS[2] over           zset  "<group>\n<member>" -> since when it is over (ms)
-- KEYS[3] notifications  hash  id -> notification (JSON)
-- KEYS[4] owed           hash  id -> number of receivers that do not have it yet
-- KEYS[4+r]              zset  queue of receiver r of R: group -> next attempt (ms)
-- KEYS[4+R+r]            hash  lanes of receiver r: group -> ids, one after the other
-- then for each group:
-- group  hash  its members, see join.lua
-- wait   zset  those that wait
--
-- ARGV[1] now (ms), ARGV[2] now (RFC 3339), ARGV[3] number of receivers R, ARGV[4] the most members
-- of a notification, then the group keys
--
-- Returns the number of members that were sealed.
local now, receivers, most = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
local due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, 5))
local sealed, empty = 0, {}
for i = 1, #due do
  local group = ARGV[4 + i]
  local hash, waiting = KEYS[2 + 2 * receivers + 2 * i + 1], KEYS[2 + 2 * receivers + 2 * i + 2]
  if due[i] and tonumber(due[i]) <= now and sealed < most then
    local members = redis.call('ZRANGE', waiting, 0, most - 1)
    if #members > 0 then
      local values = redis.call('HMGET', hash, '_group', unpack(members))
      local news = {}
      for place, member in ipairs(members) do
        local letter, detected, body = string.match(values[place + 1] or '', '^(%a)(%d*) (.*)$')
        if letter then
          news[#news + 1] = { member, letter, body, detected }
        end
      end
      redis.call('ZREM', waiting, unpack(members))
      if #news > 0 and values[1] then
        redis.call('HSET', hash, unpack(tell(group, values[1], news, ARGV[1], ARGV[2], receivers)))
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
end
write_told(KEYS[2], KEYS[3], KEYS[4], 5, receivers, ARGV[1])
return sealed
