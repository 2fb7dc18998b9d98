-- Leases the first notification of each group's lane, for one receiver.
--
-- A lane is the number of attempts at its first notification and the ids of all its notifications, separated by
-- spaces. The first notification is in the hash of notifications or, if it was handed out when it was sealed, at
-- the end of the lane, after a line break and in its short form.
--
-- KEYS[1] queue          zset  group -> next attempt (ms)
-- KEYS[2] lanes          hash  group -> lane
-- KEYS[3] notifications  hash  id -> notification (JSON)
--
-- ARGV[1] now (ms), ARGV[2] end of the leases (ms), then the group keys
--
-- Returns a flat list: id, attempt, notification, group, for each leased delivery. Large notifications are few at once:
-- after MAX_BYTES of them the other groups stay due.
local MAX_BYTES = 2097152
local due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, 3))
local lanes = redis.call('HMGET', KEYS[2], unpack(ARGV, 3))
local groups, ids, attempts, idle = {}, {}, {}, {}
for i = 1, #due do
  if due[i] and tonumber(due[i]) <= tonumber(ARGV[1]) then
    local begun, id = string.match(lanes[i] or '', '^(%d+) (%S+)')
    if id then
      groups[#groups + 1] = i
      ids[#ids + 1] = id
      attempts[#attempts + 1] = string.format('%.0f', tonumber(begun) + 1)
    else
      idle[#idle + 1] = ARGV[2 + i]
    end
  end
end
if #idle > 0 then
  redis.call('ZREM', KEYS[1], unpack(idle))
end
if #ids == 0 then
  return {}
end
local bodies = redis.call('HMGET', KEYS[3], unpack(ids))
local leased, kept, after, bytes = {}, {}, {}, 0
for index, i in ipairs(groups) do
  if bytes > MAX_BYTES then
    break
  end
  local group = ARGV[2 + i]
  local rest, own = string.match(lanes[i], '^%d+ %S+([^\n]*)(.*)$')
  local body = own ~= '' and string.sub(own, 2) or bodies[index]
  if body then
    bytes = bytes + #body
    kept[#kept + 1] = ARGV[2]
    kept[#kept + 1] = group
    after[#after + 1] = group
    after[#after + 1] = attempts[index] .. ' ' .. ids[index] .. rest .. own
    leased[#leased + 1] = ids[index]
    leased[#leased + 1] = attempts[index]
    leased[#leased + 1] = body
    leased[#leased + 1] = group
  elseif rest ~= '' then
    -- The notification is lost; the next one in the lane is leased next.
    after[#after + 1] = group
    after[#after + 1] = '0' .. rest
  else
    redis.call('HDEL', KEYS[2], group)
  end
end
if #kept > 0 then
  redis.call('ZADD', KEYS[1], 'XX', unpack(kept))
end
if #after > 0 then
  redis.call('HSET', KEYS[2], unpack(after))
end
return leased
