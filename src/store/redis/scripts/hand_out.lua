-- Tells silences that are alone in their groups, if nothing else of the group waits or is under way:
-- they have joined, are sealed and are under way with that. So a hundred thousand units are told one
-- by one in less than a third of the time.
--
-- What the caller has in hand is one place in the queue, the list of the groups with line breaks
-- between them; what each of them is told lies in its lane. When the time is up, `spread.lua` looks
-- for what has not ended.
--
-- KEYS[1] groups    zset  group -> when it is due (ms)
-- KEYS[2] members   hash  "<group>\n<member>" -> see join.lua
-- KEYS[3] sealed    hash  group -> when it was sealed last (ms)
-- KEYS[3+r]         zset  queue of receiver r of R: group, or list of groups -> next attempt (ms)
-- KEYS[3+R+r]       hash  lanes of receiver r: group -> see lease.lua
--
-- ARGV[1] now (ms), ARGV[2] interval (ms), ARGV[3] R, ARGV[4] number of silences N, ARGV[5] until when
-- what is handed out is kept from others (ms), for each receiver how many deliveries the caller has
-- room for, then N group keys, N times "<group>\n<member>", N times what is kept of the member, and N lanes
-- with the first attempt begun
--
-- Returns for each 1 if it is told, and handed out for as many receivers as there is room, else 0:
-- then nothing is changed.
local now, interval, receivers, count = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local groups = 5 + receivers
local names, letters, lanes = groups + count, groups + 2 * count, groups + 3 * count
local due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, groups + 1, groups + count))
local known = redis.call('HMGET', KEYS[2], unpack(ARGV, names + 1, names + count))
local sealed = redis.call('HMGET', KEYS[3], unpack(ARGV, groups + 1, groups + count))
local under_way = {}
for r = 1, receivers do
  -- What is of a wrong type fails here, before anything is written: a script is not undone.
  redis.call('ZCARD', KEYS[3 + r])
  under_way[r] = redis.call('HMGET', KEYS[3 + receivers + r], unpack(ARGV, groups + 1, groups + count))
end
local answers, told, members, times, attempts = {}, {}, {}, {}, {}
for i = 1, count do
  local is_alone = not due[i] and not known[i] and (tonumber(sealed[i] or '') or -interval) + interval <= now
  for r = 1, receivers do
    is_alone = is_alone and not under_way[r][i]
  end
  answers[i] = is_alone and 1 or 0
  if is_alone then
    local index, group = 2 * #told, ARGV[groups + i]
    told[#told + 1] = group
    members[index + 1], members[index + 2] = ARGV[names + i], ARGV[letters + i]
    times[index + 1], times[index + 2] = group, ARGV[1]
    attempts[index + 1], attempts[index + 2] = group, ARGV[lanes + i]
  end
end
if #told == 0 then
  return answers
end
redis.call('HSET', KEYS[2], unpack(members))
redis.call('HSET', KEYS[3], unpack(times))
for r = 1, receivers do
  local room = math.min(tonumber(ARGV[5 + r]), #told)
  local queued = {}
  for index = room + 1, #told do
    attempts[2 * index] = string.gsub(attempts[2 * index], '^1', '0', 1)
    queued[#queued + 1] = ARGV[1]
    queued[#queued + 1] = told[index]
  end
  redis.call('HSET', KEYS[3 + receivers + r], unpack(attempts))
  if room > 0 then
    redis.call('ZADD', KEYS[3 + r], ARGV[5], table.concat(told, '\n', 1, room))
  end
  if #queued > 0 then
    redis.call('ZADD', KEYS[3 + r], unpack(queued))
  end
end
return answers
