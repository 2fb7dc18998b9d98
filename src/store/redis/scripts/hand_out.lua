-- Hands out silences that are alone in their groups, if no other member of the group waits or is under way: in one
-- step they join, are sealed and are leased to the caller. So single notifications for a hundred thousand units
-- take less than a third of the time.
--
-- KEYS[1] groups    zset  group -> when it is due (ms)
-- KEYS[2] members   hash  "<group>\n<member>" -> see join.lua
-- KEYS[3] sealed    hash  group -> when it was sealed last (ms)
-- KEYS[4] notifications  hash  id -> notification (JSON)
-- KEYS[5] owed      hash  id -> number of receivers that have not got it yet; absent: one
-- KEYS[5+r]         zset  queue of receiver r of R: group -> next attempt (ms)
-- KEYS[5+R+r]       hash  lanes of receiver r: group -> see store/deliveries/lane.rs
--
-- ARGV[1] now (ms), ARGV[2] interval (ms), ARGV[3] R, ARGV[4] number of silences N, ARGV[5] end of the lease (ms), for
-- each receiver the number of deliveries that the caller takes, then N group keys, N times "<group>\n<member>", N
-- times the stored member, N ids of notifications, and N notifications (JSON)
--
-- Returns for each silence 1 if it is sealed; its deliveries are leased as far as the caller takes them. 0: nothing is
-- changed for it.
local now, interval, receivers, count = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local groups = 5 + receivers
local names, stored, ids, bodies = groups + count, groups + 2 * count, groups + 3 * count, groups + 4 * count
local due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, groups + 1, groups + count))
local known = redis.call('HMGET', KEYS[2], unpack(ARGV, names + 1, names + count))
local sealed = redis.call('HMGET', KEYS[3], unpack(ARGV, groups + 1, groups + count))
local under_way = {}
-- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
redis.call('HLEN', KEYS[4])
redis.call('HLEN', KEYS[5])
for r = 1, receivers do
  redis.call('ZCARD', KEYS[5 + r])
  under_way[r] = redis.call('HMGET', KEYS[5 + receivers + r], unpack(ARGV, groups + 1, groups + count))
end
local answers, handed_out, members, times, notifications, owed = {}, {}, {}, {}, {}, {}
for i = 1, count do
  local is_alone = not due[i] and not known[i] and (tonumber(sealed[i] or '') or -interval) + interval <= now
  for r = 1, receivers do
    is_alone = is_alone and not under_way[r][i]
  end
  answers[i] = is_alone and 1 or 0
  if is_alone then
    local index, group, id = 2 * #handed_out, ARGV[groups + i], ARGV[ids + i]
    handed_out[#handed_out + 1] = { group = group, id = id }
    members[index + 1], members[index + 2] = ARGV[names + i], ARGV[stored + i]
    times[index + 1], times[index + 2] = group, ARGV[1]
    notifications[index + 1], notifications[index + 2] = id, ARGV[bodies + i]
    owed[index + 1], owed[index + 2] = id, ARGV[3]
  end
end
if #handed_out == 0 then
  return answers
end
redis.call('HSET', KEYS[2], unpack(members))
redis.call('HSET', KEYS[3], unpack(times))
redis.call('HSET', KEYS[4], unpack(notifications))
if receivers > 1 then
  redis.call('HSET', KEYS[5], unpack(owed))
end
for r = 1, receivers do
  local lanes, queued = {}, {}
  for index, one in ipairs(handed_out) do
    local is_taken = index <= tonumber(ARGV[5 + r])
    lanes[2 * index - 1], lanes[2 * index] = one.group, (is_taken and '1+ ' or '0 ') .. one.id
    queued[2 * index - 1], queued[2 * index] = is_taken and ARGV[5] or ARGV[1], one.group
  end
  redis.call('HSET', KEYS[5 + receivers + r], unpack(lanes))
  redis.call('ZADD', KEYS[5 + r], unpack(queued))
end
return answers
