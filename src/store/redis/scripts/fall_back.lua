-- Queues the waiting notifications of a receiver for its fallback too, and notes that the fallback knows of these
-- silences: it is notified of their returns itself.
--
-- The notifications of a lane are in order, so the last one that was queued says which are left.
--
-- KEYS[1] fallen         hash  group -> the last of its notifications that was queued for the fallback
-- KEYS[2] notifications  hash  id -> notification (JSON)
-- KEYS[3] queue          zset  of the fallback: group -> next attempt (ms)
-- KEYS[4] lanes          hash  of the fallback: group -> see lease.lua
-- KEYS[5] members        hash  "<group>\n<member>" -> see join.lua
--
-- ARGV[1] now (ms), ARGV[2] the fallback, then for each group: its key, the last notification before ('' if there is
-- none) and from now on, the number of its copies, the id and the text (JSON) of each, the number of their silences,
-- and the member and the time of detection (ms) of each
--
-- Returns the number of copies that were queued.
local to, queued, a = ARGV[2], 0, 3

-- Adds the fallback to the receivers that were notified of a silence, unless its return was sealed already.
local function add_receiver(name, detected)
  local known = redis.call('HGET', KEYS[5], name) or ''
  local letter, before, notified, body = string.match(known, '^([tb])(%d*):([^ ]*)(.*)$')
  if letter and before == detected and not string.find(',' .. notified .. ',', ',' .. to .. ',', 1, true) then
    local comma = notified == '' and '' or ','
    redis.call('HSET', KEYS[5], name, letter .. before .. ':' .. notified .. comma .. to .. body)
  end
end

-- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
redis.call('HLEN', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('ZCARD', KEYS[3])
redis.call('HLEN', KEYS[4])
redis.call('HLEN', KEYS[5])
while ARGV[a] do
  local group, count = ARGV[a], tonumber(ARGV[a + 3])
  local after = a + 4 + 2 * count
  local silences = tonumber(ARGV[after])
  if (redis.call('HGET', KEYS[1], group) or '') == ARGV[a + 1] then
    redis.call('HSET', KEYS[1], group, ARGV[a + 2])
    local lane = redis.call('HGET', KEYS[4], group)
    local ids, own = string.match(lane or '0', '^([^\n]*)(.*)$')
    for c = a + 4, after - 2, 2 do
      if not string.find(ids .. ' ', ' ' .. ARGV[c] .. ' ', 1, true) then
        ids = ids .. ' ' .. ARGV[c]
        redis.call('HSET', KEYS[2], ARGV[c], ARGV[c + 1])
        queued = queued + 1
      end
    end
    if count > 0 then
      redis.call('HSET', KEYS[4], group, ids .. own)
      if not lane then
        redis.call('ZADD', KEYS[3], ARGV[1], group)
      end
    end
    for s = after + 1, after + 2 * silences - 1, 2 do
      local name, detected = group .. '\n' .. ARGV[s], ARGV[s + 1]
      add_receiver(name, detected)
      add_receiver(name .. ' ' .. detected, detected)
    end
  end
  a = after + 1 + 2 * silences
end
return queued
