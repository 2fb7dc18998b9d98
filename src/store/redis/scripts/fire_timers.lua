-- Fires timers of one partition and one type that still wait as they were read: in one step each of them waits no more,
-- and its notification is in the lane of each receiver, leased to the caller as far as it takes them.
--
-- The deliveries of the caller are one entry in the queue, the list of their groups, as in hand_out.lua. A lane that is
-- empty gets the notification itself, in the short form of timers; in one that is not, which has an earlier firing of
-- the timer, it comes next, and the hash of notifications has it.
--
-- KEYS[1] timers         zset  id of a timer that waits -> when it is looked at (ms)
-- KEYS[2] timers_ended   zset  id of a timer that fired or was cancelled -> its moment (ms)
-- KEYS[3] timers_kept    zset  the same -> until when it is kept (ms)
-- KEYS[4] timer_counts   hash  type -> how many wait
-- KEYS[5] past_timers    hash  id of a timer that fired or was cancelled -> see timer_text.rs
-- KEYS[6] notifications  hash  id -> notification
-- KEYS[7] owed           hash  id -> number of receivers that have not got it yet; absent: one
-- KEYS[7+r]              zset  queue of receiver r of R: group, or list of groups -> next attempt (ms)
-- KEYS[7+R+r]            hash  lanes of receiver r: group -> see lease.lua
-- KEYS[7+2R+p]           hash  page p of P of the timers that wait: id -> see timer_text.rs
--
-- ARGV[1] now (ms), ARGV[2] until when the timers are kept (ms), ARGV[3] their type, ARGV[4] R, ARGV[5] number of timers N,
-- ARGV[6] end of the lease (ms), ARGV[7] P, ARGV[8] what a timer that fires gets before its data, ARGV[9] the begin of
-- its notification, for each receiver the number of deliveries that the caller takes, for each page the number of its
-- timers, and then, in the order of the pages, N ids, N moments (ms), N stored timers as they were read, and N ids of
-- notifications
--
-- Returns for each timer "" if it is left as it is, else for each receiver "l" if its delivery is leased to the caller, or
-- "q" if it waits in the engine.
local receivers, count, pages = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[7])
local ids = 9 + receivers + pages
local moments, texts, notifications = ids + count, ids + 2 * count, ids + 3 * count
local waits = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, ids + 1, ids + count))
redis.call('ZCARD', KEYS[2])
redis.call('ZCARD', KEYS[3])
local counts = counts_of(KEYS[4])
-- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
redis.call('HLEN', KEYS[5])
redis.call('HLEN', KEYS[6])
redis.call('HLEN', KEYS[7])
local groups, lanes = {}, {}
for i = 1, count do
  groups[i] = 'timer:' .. ARGV[ids + i]
end
for r = 1, receivers do
  redis.call('ZCARD', KEYS[7 + r])
  lanes[r] = redis.call('HMGET', KEYS[7 + receivers + r], unpack(groups))
end
local first_page, stored = 7 + 2 * receivers, {}
for p = 1, pages do
  local before = #stored
  local last = before + tonumber(ARGV[9 + receivers + p])
  local on_page = redis.call('HMGET', KEYS[first_page + p], unpack(ARGV, ids + before + 1, ids + last))
  for n = 1, last - before do
    stored[before + n] = on_page[n]
  end
end
-- The timers that fire, and each as it is then.
local answers, fired, left, after = {}, {}, {}, {}
for i = 1, count do
  answers[i] = ''
  if waits[i] and stored[i] == ARGV[texts + i] then
    fired[#fired + 1], left[#left + 1] = i, ARGV[ids + i]
    local named, data = string.match(stored[i], '^w(%S+ %S+)(.*)$')
    after[i] = 'f' .. named .. ' ' .. ARGV[8] .. data
  end
end
if #fired == 0 then
  return answers
end
counts.add(ARGV[3], -#fired)
local i = 0
for p = 1, pages do
  local leave = {}
  for _ = 1, tonumber(ARGV[9 + receivers + p]) do
    i = i + 1
    if after[i] then
      leave[#leave + 1] = ARGV[ids + i]
    end
  end
  if #leave > 0 then
    redis.call('HDEL', KEYS[first_page + p], unpack(leave))
  end
end
local ended, kept, over = {}, {}, {}
for n, i in ipairs(fired) do
  ended[2 * n - 1], ended[2 * n] = ARGV[moments + i], left[n]
  kept[2 * n - 1], kept[2 * n] = ARGV[2], left[n]
  over[2 * n - 1], over[2 * n] = left[n], after[i]
end
redis.call('ZREM', KEYS[1], unpack(left))
redis.call('ZADD', KEYS[2], unpack(ended))
redis.call('ZADD', KEYS[3], unpack(kept))
redis.call('HSET', KEYS[5], unpack(over))
local bodies, owed, shared = {}, {}, {}
for r = 1, receivers do
  local most, write, leased, queued = tonumber(ARGV[9 + r]), {}, {}, {}
  for n, i in ipairs(fired) do
    local lane, letter, id = lanes[r][i], 'q', ARGV[notifications + i]
    if lane then
      local waiting, own = string.match(lane, '^([^\n]*)(.*)$')
      lane = waiting .. ' ' .. id .. own
      shared[i] = (shared[i] or 0) + 1
    else
      local attempt = '0 '
      if #leased < most then
        leased[#leased + 1] = groups[i]
        attempt, letter = '1 ', 'l'
      else
        queued[#queued + 1], queued[#queued + 2] = ARGV[1], groups[i]
      end
      lane = attempt .. id .. '\n' .. ARGV[9] .. left[n] .. '\n' .. after[i]
    end
    write[2 * n - 1], write[2 * n] = groups[i], lane
    answers[i] = answers[i] .. letter
  end
  redis.call('HSET', KEYS[7 + receivers + r], unpack(write))
  if #leased > 0 then
    redis.call('ZADD', KEYS[7 + r], ARGV[6], table.concat(leased, '\n'))
  end
  if #queued > 0 then
    redis.call('ZADD', KEYS[7 + r], unpack(queued))
  end
end
for n, i in ipairs(fired) do
  if receivers == 0 then
    answers[i] = '-'
  end
  if shared[i] then
    bodies[#bodies + 1], bodies[#bodies + 2] = ARGV[notifications + i], ARGV[9] .. left[n] .. '\n' .. after[i]
    if shared[i] > 1 then
      owed[#owed + 1], owed[#owed + 2] = ARGV[notifications + i], shared[i]
    end
  end
end
if #bodies > 0 then
  redis.call('HSET', KEYS[6], unpack(bodies))
end
if #owed > 0 then
  redis.call('HSET', KEYS[7], unpack(owed))
end
counts.write()
return answers
