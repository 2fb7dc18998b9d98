-- The first part of finish.lua and begin_only_attempts.lua: it ends the first deliveries of lanes.
--
-- KEYS[1] queue          zset  group -> next attempt (ms)
-- KEYS[2] lanes          hash  group -> see lease.lua
-- KEYS[3] notifications  hash  id -> notification (JSON)
-- KEYS[4] owed           hash  id -> number of receivers that have not got it yet; absent: one
--
-- ARGV[1] now (ms), ARGV[2] number of deliveries N, then N group keys, then N ids. `attempts`: the argument before N
-- numbers of attempts of which the delivery has to be under way, or nil for any.
--
-- Returns nothing: it declares a function, which answers for each delivery if it ended. Only the first delivery of a
-- lane is under way and can end. They end one after the other: of a delivery that is there twice, the first end counts.
local function end_lanes(attempts)
  local count = tonumber(ARGV[2])
  local lanes = redis.call('HMGET', KEYS[2], unpack(ARGV, 3, 2 + count))
  local owed
  local ended, after, free, empty, rest, done, left = {}, {}, {}, {}, {}, {}, {}
  for i = 1, count do
    local group, id = ARGV[2 + i], ARGV[2 + count + i]
    local lane = after[group] or lanes[i] or ''
    local attempt, first, others, own = string.match(lane, '^(%d+) (%S+)([^\n]*)(\n?)')
    ended[i] = first == id and (not attempts or attempt == ARGV[attempts + i])
    if ended[i] then
      if own == '' then
        owed = owed or redis.call('HMGET', KEYS[4], unpack(ARGV, 3 + count, 2 + 2 * count))
        if (tonumber(owed[i] or 1) or 1) <= 1 then
          done[#done + 1] = id
        else
          left[#left + 1] = id
          left[#left + 1] = string.format('%.0f', tonumber(owed[i]) - 1)
        end
      end
      after[group] = others == '' and '' or '0' .. others
    end
  end
  for group, lane in pairs(after) do
    if lane == '' then
      empty[#empty + 1] = group
    else
      rest[#rest + 1] = group
      rest[#rest + 1] = lane
      free[#free + 1] = ARGV[1]
      free[#free + 1] = group
    end
  end
  if #done > 0 then
    redis.call('HDEL', KEYS[3], unpack(done))
    redis.call('HDEL', KEYS[4], unpack(done))
  end
  if #left > 0 then
    redis.call('HSET', KEYS[4], unpack(left))
  end
  if #empty > 0 then
    redis.call('HDEL', KEYS[2], unpack(empty))
    redis.call('ZREM', KEYS[1], unpack(empty))
  end
  if #rest > 0 then
    redis.call('HSET', KEYS[2], unpack(rest))
    redis.call('ZADD', KEYS[1], unpack(free))
  end
  return ended
end

