-- Fires timers of one partition and one type that still wait as they were read: in one step each of them waits no more,
-- and its notification is in the lane of each receiver, leased to the caller as far as it takes them.
--
-- The deliveries of the caller are one entry in the queue, the list of their groups, as in hand_out.lua. A lane that is
-- empty gets the notification itself; in one that is not, which has an earlier firing of the timer, it comes next, and
-- the hash of notifications has it.
--
-- KEYS[1] timers         zset  id of a timer that waits -> when it is looked at (ms)
-- KEYS[2] timers_ended   zset  id of a timer that fired or was cancelled -> its moment (ms)
-- KEYS[3] timers_kept    zset  the same -> until when it is kept (ms)
-- KEYS[4] timer_counts   hash  type -> how many wait
-- KEYS[5] notifications  hash  id -> notification (JSON)
-- KEYS[6] owed           hash  id -> number of receivers that have not got it yet; absent: one
-- KEYS[6+r]              zset  queue of receiver r of R: group, or list of groups -> next attempt (ms)
-- KEYS[6+R+r]            hash  lanes of receiver r: group -> see lease.lua
-- KEYS[6+2R+p]           hash  page p of the timers: id -> see timer_text.rs
--
-- ARGV[1] now (ms), ARGV[2] until when the timers are kept (ms), ARGV[3] their type, ARGV[4] R, ARGV[5] number of timers N,
-- ARGV[6] end of the lease (ms), for each receiver the number of deliveries that the caller takes, then for each timer the
-- number of its page, its id, its moment (ms), the stored timer as it was read, and as it is then, the id of its
-- notification, and the notification
--
-- Returns for each timer "" if it is left as it is, else for each receiver "l" if its delivery is leased to the caller, or
-- "q" if it waits in the engine.
local receivers, count = tonumber(ARGV[4]), tonumber(ARGV[5])
local WIDTH = 7
local function field(i, n)
  return ARGV[6 + receivers + WIDTH * (i - 1) + n]
end
local ids, groups, pages, of_page = {}, {}, {}, {}
for i = 1, count do
  ids[i] = field(i, 2)
  groups[i] = 'timer:' .. ids[i]
  local p = tonumber(field(i, 1))
  if not of_page[p] then
    of_page[p] = {}
    pages[#pages + 1] = p
  end
  table.insert(of_page[p], i)
end
local waits = redis.call('ZMSCORE', KEYS[1], unpack(ids))
redis.call('ZCARD', KEYS[2])
redis.call('ZCARD', KEYS[3])
local counts = counts_of(KEYS[4])
-- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
redis.call('HLEN', KEYS[5])
redis.call('HLEN', KEYS[6])
local lanes = {}
for r = 1, receivers do
  redis.call('ZCARD', KEYS[6 + r])
  lanes[r] = redis.call('HMGET', KEYS[6 + receivers + r], unpack(groups))
end
local first_page = 6 + 2 * receivers
local stored = {}
for _, p in ipairs(pages) do
  local on_page = {}
  for n, i in ipairs(of_page[p]) do
    on_page[n] = ids[i]
  end
  for n, text in ipairs(redis.call('HMGET', KEYS[first_page + p], unpack(on_page))) do
    stored[of_page[p][n]] = text
  end
end
local answers, fired, ended, kept = {}, {}, {}, {}
local bodies, owed, shared = {}, {}, {}
for i = 1, count do
  answers[i] = ''
  if waits[i] and stored[i] == field(i, 4) then
    fired[#fired + 1] = i
    ended[#ended + 1], ended[#ended + 2] = field(i, 3), ids[i]
    kept[#kept + 1], kept[#kept + 2] = ARGV[2], ids[i]
    shared[i] = 0
  end
end
if #fired == 0 then
  return answers
end
counts.add(ARGV[3], -#fired)
local left = {}
for n, i in ipairs(fired) do
  left[n] = ids[i]
end
for _, p in ipairs(pages) do
  local write = {}
  for _, i in ipairs(of_page[p]) do
    if shared[i] then
      write[#write + 1], write[#write + 2] = ids[i], field(i, 5)
    end
  end
  if #write > 0 then
    redis.call('HSET', KEYS[first_page + p], unpack(write))
  end
end
redis.call('ZREM', KEYS[1], unpack(left))
redis.call('ZADD', KEYS[2], unpack(ended))
redis.call('ZADD', KEYS[3], unpack(kept))
for r = 1, receivers do
  local most, write, leased, queued = tonumber(ARGV[6 + r]), {}, {}, {}
  for _, i in ipairs(fired) do
    local lane, letter = lanes[r][i], 'q'
    if lane then
      local waiting, own = string.match(lane, '^([^\n]*)(.*)$')
      lane = waiting .. ' ' .. field(i, 6) .. own
      shared[i] = shared[i] + 1
    elseif #leased < most then
      leased[#leased + 1] = groups[i]
      lane, letter = '1 ' .. field(i, 6) .. '\n' .. field(i, 7), 'l'
    else
      queued[#queued + 1], queued[#queued + 2] = ARGV[1], groups[i]
      lane = '0 ' .. field(i, 6) .. '\n' .. field(i, 7)
    end
    write[#write + 1], write[#write + 2] = groups[i], lane
    answers[i] = answers[i] .. letter
  end
  redis.call('HSET', KEYS[6 + receivers + r], unpack(write))
  if #leased > 0 then
    redis.call('ZADD', KEYS[6 + r], ARGV[6], table.concat(leased, '\n'))
  end
  if #queued > 0 then
    redis.call('ZADD', KEYS[6 + r], unpack(queued))
  end
end
for _, i in ipairs(fired) do
  if receivers == 0 then
    answers[i] = '-'
  end
  if shared[i] > 0 then
    bodies[#bodies + 1], bodies[#bodies + 2] = field(i, 6), field(i, 7)
  end
  if shared[i] > 1 then
    owed[#owed + 1], owed[#owed + 2] = field(i, 6), shared[i]
  end
end
if #bodies > 0 then
  redis.call('HSET', KEYS[5], unpack(bodies))
end
if #owed > 0 then
  redis.call('HSET', KEYS[6], unpack(owed))
end
counts.write()
return answers
