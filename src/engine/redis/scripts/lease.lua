-- Hands out the first notification of each group's lane, for one receiver.
--
-- KEYS[1] queue          zset  group -> next attempt (ms)
-- KEYS[2] lanes          hash  group -> ids, one after the other
-- KEYS[3] notifications  hash  id -> notification (JSON)
-- KEYS[4] attempts       hash  "<id>.<receiver>" -> attempts begun
--
-- ARGV[1] now (ms), ARGV[2] until when they are kept from others (ms), ARGV[3] receiver, then the
-- group keys
--
-- Returns a flat list: id, attempt, notification, for each that was leased.
local due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, 4))
local lanes = redis.call('HMGET', KEYS[2], unpack(ARGV, 4))
local groups, ids, tries, idle = {}, {}, {}, {}
for i = 1, #due do
  if due[i] and tonumber(due[i]) <= tonumber(ARGV[1]) then
    local id = lanes[i] and string.match(lanes[i], '^%S+')
    if id then
      groups[#groups + 1] = i
      ids[#ids + 1] = id
      tries[#tries + 1] = id .. '.' .. ARGV[3]
    else
      idle[#idle + 1] = ARGV[3 + i]
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
local begun = redis.call('HMGET', KEYS[4], unpack(tries))
local leased, kept, counted = {}, {}, {}
for place, i in ipairs(groups) do
  local group, id = ARGV[3 + i], ids[place]
  if bodies[place] then
    local attempt = string.format('%.0f', tonumber(begun[place] or 0) + 1)
    kept[#kept + 1] = ARGV[2]
    kept[#kept + 1] = group
    counted[#counted + 1] = tries[place]
    counted[#counted + 1] = attempt
    leased[#leased + 1] = id
    leased[#leased + 1] = attempt
    leased[#leased + 1] = bodies[place]
  else
    -- What it said is gone; what follows it in the lane is handed out next.
    local rest = string.match(lanes[i], '^%S+ (.+)$')
    if rest then
      redis.call('HSET', KEYS[2], group, rest)
    else
      redis.call('HDEL', KEYS[2], group)
    end
  end
end
if #leased > 0 then
  redis.call('ZADD', KEYS[1], 'XX', unpack(kept))
  redis.call('HSET', KEYS[4], unpack(counted))
end
return leased
