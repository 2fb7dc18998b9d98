-- Notifies again of silences of one group that last: its receivers, or those of an escalation. Nothing changes if the group
-- was looked at meanwhile, or its silences are not those that were read.
--
-- KEYS[1] reminders      zset  group -> when it is looked at (ms)
-- KEYS[2] members        hash  "<group>\n<member>" -> see join.lua
-- KEYS[3] notifications  hash  id -> notification (JSON)
-- KEYS[4] owed           hash  id -> number of receivers that have not got it yet; absent: one
-- KEYS[5] lasting        zset  notified members of the group whose units are still offline -> when (ms)
-- KEYS[5+r]              zset  queue of receiver r of R: group -> next attempt (ms)
-- KEYS[5+R+r]            hash  lanes of receiver r: group -> see lease.lua
--
-- ARGV[1] now (ms), ARGV[2] the moment for which the group is looked at (ms), ARGV[3] group, ARGV[4] the next moment (ms),
-- "-" if there is none, "" if more members follow; then ARGV[5] and ARGV[6] are "", else how many members last, and when
-- the newest was notified (ms), "-" if there is none. ARGV[7] R, ARGV[8] number of members M, then M members, then their M
-- new values, "" to leave one, then for each notification:
--  1 id
--  2 notification (JSON)
--  3 number of its receivers, then the number r of each
--
-- Returns 1, or 0 if nothing is changed.
--
-- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
local now, group, next, receivers, count, head = ARGV[1], ARGV[3], ARGV[4], tonumber(ARGV[7]), tonumber(ARGV[8]), 8
for i = 1, #KEYS do
  if i >= 2 and i <= 4 or i > 5 + receivers then
    redis.call('HLEN', KEYS[i])
  else
    redis.call('ZCARD', KEYS[i])
  end
end
local due = redis.call('ZMSCORE', KEYS[1], group)[1]
if not due or tonumber(due) ~= tonumber(ARGV[2]) then
  return 0
end
-- A silence that was notified since would not be looked at before the next moment.
if next ~= '' then
  local newest = redis.call('ZREVRANGE', KEYS[5], 0, 0, 'WITHSCORES')[2]
  if redis.call('ZCARD', KEYS[5]) ~= tonumber(ARGV[5]) or tonumber(newest or '') ~= tonumber(ARGV[6]) then
    return 0
  end
end
if count > 0 then
  for _, at in ipairs(redis.call('ZMSCORE', KEYS[5], unpack(ARGV, head + 1, head + count))) do
    if not at then
      return 0
    end
  end
end
for i = 1, count do
  local value = ARGV[head + count + i]
  if value ~= '' then
    redis.call('HSET', KEYS[2], group .. '\n' .. ARGV[head + i], value)
  end
end
local a = head + 1 + 2 * count
while ARGV[a] do
  local id, number = ARGV[a], tonumber(ARGV[a + 2])
  redis.call('HSET', KEYS[3], id, ARGV[a + 1])
  if number > 1 then
    redis.call('HSET', KEYS[4], id, number)
  end
  for n = 1, number do
    local r = tonumber(ARGV[a + 2 + n])
    local before = redis.call('HGET', KEYS[5 + receivers + r], group)
    local ids, body = string.match(before or '0', '^([^\n]*)(.*)$')
    redis.call('HSET', KEYS[5 + receivers + r], group, ids .. ' ' .. id .. body)
    if not before then
      redis.call('ZADD', KEYS[5 + r], 'NX', now, group)
    end
  end
  a = a + 3 + number
end
if next == '-' then
  redis.call('ZREM', KEYS[1], group)
elseif next ~= '' then
  redis.call('ZADD', KEYS[1], next, group)
end
return 1
