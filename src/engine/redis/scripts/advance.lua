-- Moves forward how far Rollcall has heard, and writes down what it did not hear.
--
-- KEYS[1] heard    hash    at -> ms, ledger -> another value after each change of the ledger
-- KEYS[2] blind    zset    "<from> <to>" (ms) -> to
-- KEYS[3] outbox   stream
-- KEYS[4] members  hash    "<share>/<client id>" -> "<heard> <release> <connection>"
-- KEYS[5] floors   hash    share -> until when a member that is gone may have lost something (ms)
-- KEYS[6] session  string  up to when it has heard (ms); absent: no session is kept for who heard
--
-- ARGV[1] up to here everything came all the way (ms)
-- ARGV[2] the gap that makes an interval (ms)
-- ARGV[3] the length from which an interval is told (ms)
-- ARGV[4] intervals that ended before this are of no use to anybody any more (ms)
-- ARGV[5] how far the caller knows that was heard (ms), "" if it does not: where nothing is stored,
--         what was stored is lost, and that is told however short it was
-- ARGV[6] how long the session is kept (ms), "" if there is none
-- ARGV[7] share, ARGV[8] client id, ARGV[9] connection: the member that heard; absent: a plain
--         subscription, which hears everything by itself
--
-- Returns {from, to} of a blind interval that was written, {"stranger"} if the member is none, else
-- an empty list.
local sent = tonumber(ARGV[1])
local share = ARGV[7]
local mine = share and share .. '/' .. ARGV[8]
if ARGV[6] ~= '' then
  redis.call('PSETEX', KEYS[6], ARGV[6], ARGV[1])
end

local members = {}
local all = redis.call('HGETALL', KEYS[4])
for n = 1, #all, 2 do
  local heard, release, connection = string.match(all[n + 1], '^(%d+) (%d+) (%d+)$')
  members[all[n]] = { heard = tonumber(heard), release = tonumber(release), connection = connection }
end
if mine then
  local me = members[mine]
  if not me or me.connection ~= ARGV[9] then
    return { 'stranger' }
  end
  if sent <= me.heard then
    return {}
  end
  me.heard = sent
  redis.call('HSET', KEYS[4], mine, string.format('%.0f %.0f %s', sent, me.release, me.connection))
end

-- Of these the broker is rid, though it did not say so.
for name, member in pairs(members) do
  local released = member.heard + member.release
  if released < sent then
    local group = string.match(name, '^(.*)/')
    redis.call('HDEL', KEYS[4], name)
    local floor = tonumber(redis.call('HGET', KEYS[5], group) or 0)
    redis.call('HSET', KEYS[5], group, string.format('%.0f', math.max(floor, released)))
    members[name] = nil
  end
end

local heard, floor = sent, nil
if share then
  for name, member in pairs(members) do
    if string.match(name, '^(.*)/') == share then
      heard = math.min(heard, member.heard)
    end
  end
  floor = tonumber(redis.call('HGET', KEYS[5], share))
  if floor and heard < floor then
    return {}
  end
  redis.call('HDEL', KEYS[5], share)
end

local before = tonumber(redis.call('HGET', KEYS[1], 'at'))
if before and heard <= before then
  return {}
end
local to = string.format('%.0f', heard)
redis.call('HSET', KEYS[1], 'at', to)
local is_lost = not before and ARGV[5] ~= ''
if is_lost then
  before = tonumber(ARGV[5])
end
if not before or heard <= before then
  return {}
end
local is_floored = floor and floor > before
if not is_lost and not is_floored and heard - before <= tonumber(ARGV[2]) then
  return {}
end
local from = string.format('%.0f', before)
local interval = from .. ' ' .. to
redis.call('ZADD', KEYS[2], to, interval)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ARGV[4])
redis.call('HSET', KEYS[1], 'ledger', to)
if is_lost or heard - before > tonumber(ARGV[3]) then
  redis.call('XADD', KEYS[3], '*', 'blind', interval)
end
return { from, to }
