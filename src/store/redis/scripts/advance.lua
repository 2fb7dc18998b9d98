-- Moves forward how far Rollcall has heard, and writes down what it did not hear.
--
-- KEYS[1] heard    hash    at -> ms, ledger -> another value after each change of the ledger
-- KEYS[2] blind    zset    "<from> <to>" (ms) -> to, and a half where another client may have been
--                          given heartbeats
-- KEYS[3] outbox   stream
-- KEYS[4] members  hash    "<share>/<client id>" -> "<heard> <release> <connection>"
-- KEYS[5] floors   hash    share -> until when a member that is gone may have lost something (ms)
-- KEYS[6] plain    hash    client id -> "<heard> <since> <connection>"
-- KEYS[7] session  string  up to when it has heard (ms); absent: no session is kept for who heard
--
-- ARGV[1] up to here everything came all the way (ms)
-- ARGV[2] the gap that makes an interval (ms)
-- ARGV[3] the length from which an interval is told (ms)
-- ARGV[4] intervals that ended before this are of no use to anybody any more (ms)
-- ARGV[5] how far the caller knows that was heard (ms), "" if it does not: where nothing is stored,
--         what was stored is lost, and blind time however short it was; see notice_loss.lua
-- ARGV[6] the id of the fleet that the caller knows
-- ARGV[7] share of the member that heard, "" of a plain subscription whose session is kept; absent: of
--         any plain subscription, which hears everything by itself
-- ARGV[8] its client id, ARGV[9] its connection
-- ARGV[10] how long the session is kept (ms)
-- ARGV[11] 1 if the connection before was cut
--
-- Returns {from, to} of a blind interval that was written, {"stranger"} if the member is none, {"another"}
-- if the fleet is another one, in which case nothing was written, else an empty list.
if redis.call('HGET', KEYS[1], 'fleet') ~= ARGV[6] then
  return { 'another' }
end
local sent = tonumber(ARGV[1])
local gap = tonumber(ARGV[2])
local share = ARGV[7] ~= '' and ARGV[7]
local kept = ARGV[7] == ''
local mine = share and share .. '/' .. ARGV[8]

-- Since when the connection of a plain ear vouches for what it has heard, and which others do, too.
local since, others = nil, {}
if kept then
  redis.call('PSETEX', KEYS[7], ARGV[10], ARGV[1])
  since = sent
  local ears = redis.call('HGETALL', KEYS[6])
  for n = 1, #ears, 2 do
    local heard, from, connection = string.match(ears[n + 1], '^(%d+) (%d+) (%d+)$')
    heard, from = tonumber(heard), tonumber(from)
    if ears[n] == ARGV[8] then
      if connection == ARGV[9] then
        since = math.min(from or sent, sent)
      end
    elseif heard and sent - heard <= gap then
      table.insert(others, from)
    else
      redis.call('HDEL', KEYS[6], ears[n])
    end
  end
  redis.call('HSET', KEYS[6], ARGV[8], string.format('%.0f %.0f %s', sent, since, ARGV[9]))
end

local members = {}
local all = redis.call('HGETALL', KEYS[4])
for n = 1, #all, 2 do
  local heard, release, connection = string.match(all[n + 1], '^(%d+) (%d+) (%d+)$')
  if heard then
    members[all[n]] = { heard = tonumber(heard), release = tonumber(release), connection = connection }
  else
    -- What says nothing vouches for nothing: the time up to now is lost.
    redis.call('HDEL', KEYS[4], all[n])
    local group = string.match(all[n], '^(.*)/')
    if group then
      redis.call('HSET', KEYS[5], group, ARGV[1])
    end
  end
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
    local floor = tonumber(redis.call('HGET', KEYS[5], group) or 0) or 0
    redis.call('HSET', KEYS[5], group, string.format('%.0f', math.max(floor, released)))
    members[name] = nil
  end
end

local before = tonumber(redis.call('HGET', KEYS[1], 'at') or '')
local heard, floor = sent, nil
if kept then
  floor = since
  if before and before < since then
    for _, from in ipairs(others) do
      if from <= before then
        return {}
      end
    end
  end
end
if share then
  for name, member in pairs(members) do
    if string.match(name, '^(.*)/') == share then
      heard = math.min(heard, member.heard)
    end
  end
  floor = tonumber(redis.call('HGET', KEYS[5], share) or '')
  if floor and heard < floor then
    return {}
  end
  redis.call('HDEL', KEYS[5], share)
end

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
if not is_lost and not is_floored and heard - before <= gap then
  return {}
end
local from = string.format('%.0f', before)
local interval = from .. ' ' .. to
local score = to
if kept and is_floored and ARGV[11] == '1' then
  score = to .. '.5'
end
redis.call('ZADD', KEYS[2], score, interval)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ARGV[4])
redis.call('HSET', KEYS[1], 'ledger', to)
if heard - before > tonumber(ARGV[3]) then
  redis.call('XADD', KEYS[3], '*', 'blind', interval)
end
return { from, to }
