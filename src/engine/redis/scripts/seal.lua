-- Seals groups that are due: fixes members and id of their notifications and puts them at the end
-- of the group's lane for each receiver.
--
-- The id is a digest of the group and of what is told of whom, so that the same news has the same
-- id even if what was sealed here is lost and sealed again.
--
-- KEYS[1] groups         zset  group -> when it is due (ms)
-- KEYS[2] over           zset  "<group>\n<member>" -> since when it is over (ms)
-- KEYS[3] notifications  hash  id -> notification (JSON)
-- KEYS[4] owed           hash  id -> number of receivers that do not have it yet
-- KEYS[4+r]              zset  queue of receiver r: group -> next attempt (ms)
-- then for each group:
-- hash of the group, zset of its waiting members, a list for each receiver: its lane
--
-- ARGV[1] now (ms), ARGV[2] now (RFC 3339), ARGV[3] number of receivers R, ARGV[4] the most members
-- of a notification, then the group keys
--
-- Returns the number of members that were sealed.
local now, receivers, most = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local sealed = 0
for i = 1, #ARGV - 4 do
  local group = ARGV[4 + i]
  local base = 4 + receivers + (i - 1) * (2 + receivers)
  local hash, waiting = KEYS[base + 1], KEYS[base + 2]
  local due = redis.call('ZSCORE', KEYS[1], group)
  if due and tonumber(due) <= tonumber(now) and sealed < most then
    local members = redis.call('ZRANGE', waiting, 0, most - 1)
    local offline, online, blind, digest = {}, {}, {}, { group }
    for _, member in ipairs(members) do
      local value = redis.call('HGET', hash, member) or ''
      local letter, detected, body = string.match(value, '^(%a)(%d*) (.*)$')
      if string.sub(member, 1, 6) == 'blind ' then
        blind[#blind + 1] = body
        letter = 'b'
      elseif letter == 'o' then
        offline[#offline + 1] = body
      elseif letter == 'b' then
        online[#online + 1] = body
      end
      if letter == 'o' then
        redis.call('HSET', hash, member, 't' .. detected)
      elseif letter == 'b' then
        redis.call('HSET', hash, member, 'x' .. detected)
        redis.call('ZADD', KEYS[2], now, group .. '\n' .. member)
      end
      digest[#digest + 1] = (letter or '') .. member
      redis.call('ZREM', waiting, member)
    end
    -- With nobody to tell there is nothing to keep: nobody would ever take it away.
    if #members > 0 and receivers > 0 then
      local id = 'ntf_' .. string.sub(redis.sha1hex(table.concat(digest, '\n')), 1, 24)
      local body = '{"group":' .. redis.call('HGET', hash, '_group')
        .. ',"sealed_at":"' .. ARGV[2]
        .. '","offline":[' .. table.concat(offline, ',')
        .. '],"online":[' .. table.concat(online, ',')
        .. '],"blind":[' .. table.concat(blind, ',') .. ']}'
      redis.call('HSET', KEYS[3], id, body)
      redis.call('HSET', KEYS[4], id, receivers)
      for r = 1, receivers do
        redis.call('RPUSH', KEYS[base + 2 + r], id)
        redis.call('ZADD', KEYS[4 + r], 'NX', now, group)
      end
      redis.call('HSET', hash, '_sealed', now)
    end
    if redis.call('ZCARD', waiting) == 0 then
      redis.call('ZREM', KEYS[1], group)
    end
    sealed = sealed + #members
  end
end
return sealed
