-- Hands out the first notification of each group's lane, for one receiver.
--
-- KEYS[1] queue          zset  group -> next attempt (ms)
-- KEYS[2] notifications  hash  id -> notification (JSON)
-- KEYS[3] attempts       hash  "<id>.<receiver>" -> attempts begun
-- then the lane of each group, a list of ids
--
-- ARGV[1] now (ms), ARGV[2] until when they are kept from others (ms), ARGV[3] receiver, then the
-- group keys
--
-- Returns a flat list: id, attempt, notification, for each that was leased.
local leased = {}
for i = 1, #ARGV - 3 do
  local group, lane = ARGV[3 + i], KEYS[3 + i]
  local due = redis.call('ZSCORE', KEYS[1], group)
  if due and tonumber(due) <= tonumber(ARGV[1]) then
    local id = redis.call('LINDEX', lane, 0)
    local body = id and redis.call('HGET', KEYS[2], id)
    if body then
      redis.call('ZADD', KEYS[1], 'XX', ARGV[2], group)
      leased[#leased + 1] = id
      leased[#leased + 1] = redis.call('HINCRBY', KEYS[3], id .. '.' .. ARGV[3], 1)
      leased[#leased + 1] = body
    elseif id then
      redis.call('LPOP', lane)
    else
      redis.call('ZREM', KEYS[1], group)
    end
  end
end
return leased
