-- Hands out silences that are alone in their groups, if no other member of the group waits or is under way: in one
-- step they join, are sealed and are leased to the caller. So single notifications for a hundred thousand units
-- take less than a third of the time.
--
-- The deliveries of the caller are one entry in the queue, the list of their groups, separated by line breaks; the
-- lane of each group has its notification. When the lease ends, `split_list.lua` gives the groups that have not
-- ended entries of their own.
--
-- KEYS[1] groups    zset  group -> when it is due (ms)
-- KEYS[2] members   hash  "<group>\n<member>" -> see join.lua
-- KEYS[3] sealed    hash  group -> when it was sealed last (ms)
-- KEYS[3+r]         zset  queue of receiver r of R: group, or list of groups -> next attempt (ms)
-- KEYS[3+R+r]       hash  lanes of receiver r: group -> see lease.lua
--
-- ARGV[1] now (ms), ARGV[2] interval (ms), ARGV[3] R, ARGV[4] number of silences N, ARGV[5] end of the lease (ms), for
-- each receiver the number of deliveries that the caller takes, then N group keys, N times "<group>\n<member>", N
-- times the stored member, and N lanes with the first attempt begun
--
-- Returns for each silence 1 if it is sealed; its deliveries are leased as far as the caller takes them. 0: nothing is
-- changed for it.
local now, interval, receivers, count = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local groups = 5 + receivers
local names, stored, lanes = groups + count, groups + 2 * count, groups + 3 * count
local due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, groups + 1, groups + count))
local known = redis.call('HMGET', KEYS[2], unpack(ARGV, names + 1, names + count))
local sealed = redis.call('HMGET', KEYS[3], unpack(ARGV, groups + 1, groups + count))
local under_way = {}
for r = 1, receivers do
  -- This command fails if a key is of a wrong type, before any write: Redis does not undo a script.
  redis.call('ZCARD', KEYS[3 + r])
  under_way[r] = redis.call('HMGET', KEYS[3 + receivers + r], unpack(ARGV, groups + 1, groups + count))
end
local answers, handed_out, members, times, attempts = {}, {}, {}, {}, {}
for i = 1, count do
  local is_alone = not due[i] and not known[i] and (tonumber(sealed[i] or '') or -interval) + interval <= now
  for r = 1, receivers do
    is_alone = is_alone and not under_way[r][i]
  end
  answers[i] = is_alone and 1 or 0
  if is_alone then
    local index, group = 2 * #handed_out, ARGV[groups + i]
    handed_out[#handed_out + 1] = group
    members[index + 1], members[index + 2] = ARGV[names + i], ARGV[stored + i]
    times[index + 1], times[index + 2] = group, ARGV[1]
    attempts[index + 1], attempts[index + 2] = group, ARGV[lanes + i]
  end
end
if #handed_out == 0 then
  return answers
end
redis.call('HSET', KEYS[2], unpack(members))
redis.call('HSET', KEYS[3], unpack(times))
for r = 1, receivers do
  local taken = math.min(tonumber(ARGV[5 + r]), #handed_out)
  local queued = {}
  for index = taken + 1, #handed_out do
    attempts[2 * index] = string.gsub(attempts[2 * index], '^1', '0', 1)
    queued[#queued + 1] = ARGV[1]
    queued[#queued + 1] = handed_out[index]
  end
  redis.call('HSET', KEYS[3 + receivers + r], unpack(attempts))
  if taken > 0 then
    redis.call('ZADD', KEYS[3 + r], ARGV[5], table.concat(handed_out, '\n', 1, taken))
  end
  if #queued > 0 then
    redis.call('ZADD', KEYS[3 + r], unpack(queued))
  end
end
return answers
