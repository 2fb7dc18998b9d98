-- Takes or renews the lease of an instance, and answers the time of the fleet.
--
-- This is the only script that reads a clock; all callers take `now` from its answer. If the server's clock goes back
-- (it was set, or a replica was promoted), the time of the fleet continues from its last value, a little slower,
-- until the clock has caught up.
--
-- KEYS[1] roster  zset  instance -> end of its lease (ms, time of the fleet)
-- KEYS[2] clock   hash  server -> the server's clock (ms), fleet -> the time of the fleet (ms), both at the last renewal;
--                       jump -> the server's clock (ms) when a jump forward was handled; ahead -> how far (ms) the
--                       server's clock is ahead by a step that is not accepted yet, since -> the time of the fleet (ms)
--                       at that step; stepped -> the sum of the accepted steps (ms), skipped -> "<from> <to>", the time of
--                       the fleet (ms) before and after the last of them
-- KEYS[3] heard   hash  at -> up to when Rollcall has heard (ms)
--
-- ARGV[1] instance
-- ARGV[2] length of the lease (ms)
-- ARGV[3] up to when Rollcall has heard (ms), 0 if it has not
-- ARGV[4] the channel that notifies other instances of a new one
-- ARGV[5] the server's clock (ms) as expected without a jump forward, "" without a jump
-- ARGV[6] the longest lease that any instance requests (ms); a lease that ends later is removed
-- ARGV[7] the time of the fleet (ms) that the caller expects by its monotonic clock, "" if it knows no earlier one
-- ARGV[8] how long a first attempt took (ms): this answer may be as late; "" if this is the first attempt
--
-- Returns {time of the fleet (ms), the server's clock (ms), when the first lease of another instance ends (ms), "" if
-- there is none, "1" if the instance had no valid lease before, how far the clock is ahead by a step that is not
-- accepted yet (ms) or "", the sum of the accepted steps (ms), "<from> <to>" of the last of them or "", number of
-- leases that were removed, as many of their names, instance, ...} with every instance that has a valid lease.
-- {"", the server's clock (ms)} and nothing is changed, if the clock seems to have stepped and this is a first attempt,
-- which may have been slow.
--
-- The rule is in presence/roster.rs and clock/steps.rs; a test compares them.

-- A stored number of milliseconds. Other text, and a number beyond the calendar, count as absent.
local function stored(text)
  local ms = tonumber(text)
  return ms and ms >= 0 and ms < 253402128000000 and ms or nil
end
local read = redis.call('TIME')
local server = tonumber(read[1]) * 1000 + math.floor(tonumber(read[2]) / 1000)
local last = redis.call('HMGET', KEYS[2], 'server', 'fleet', 'jump', 'ahead', 'since', 'stepped', 'skipped')
local ahead, since, stepped, skipped = stored(last[4]), stored(last[5]), stored(last[6]) or 0, last[7] or ''
if not since then
  ahead = nil
end
-- A moment more than 400 days ahead of both other clocks counts as absent.
local before, heard = stored(last[2]), stored(ARGV[3]) or 0
if before and before > math.max(server, heard) + 34560000000 then
  before = nil
end
if heard > math.max(server, before or heard) + 34560000000 then
  heard = 0
end
local expected = tonumber(ARGV[7])
if expected then
  expected = math.max(expected, before or 0)
else
  if ahead and server - ahead + 1000 < since then
    ahead = nil
  end
  expected = server - (ahead or 0)
end
local now, difference, late = server, server - expected, tonumber(ARGV[8])
if difference > 1000 + (not ahead and late or 0) then
  if not ahead or math.abs(difference - ahead) > 1000 + (late or 0) then
    if not late then
      return { '', string.format('%.0f', server) }
    end
    ahead, since = difference, expected
  end
  now = server - ahead
  if now - since >= 60000 then
    stepped, skipped = stepped + ahead, string.format('%.0f %.0f', now, server)
    now, ahead = server, nil
    redis.call('HSET', KEYS[2], 'stepped', string.format('%.0f', stepped), 'skipped', skipped)
  end
else
  ahead = nil
end
if ahead then
  redis.call('HSET', KEYS[2], 'ahead', string.format('%.0f', ahead), 'since', string.format('%.0f', since))
elseif last[4] or last[5] then
  redis.call('HDEL', KEYS[2], 'ahead', 'since')
end
local fleet = math.max(now, heard)
if before and ahead then
  fleet = math.max(fleet, before)
elseif before then
  -- A jump forward does not count as time that has passed.
  local passed = math.min(math.max(server - (stored(last[1]) or server), 0), tonumber(ARGV[2]))
  fleet = math.max(fleet, before + math.floor(passed * 995 / 1000))
end
-- A jump makes expiry keys expire too early, so the first renewal that is told of it moves hearing back by the jump.
local without_jump, handled = tonumber(ARGV[5]), stored(last[3])
if handled and handled > server then
  -- The clock was set back since then, and may jump forward again.
  redis.call('HDEL', KEYS[2], 'jump')
end
if without_jump and not (handled and handled > without_jump and handled <= server) then
  redis.call('HSET', KEYS[2], 'jump', string.format('%.0f', server))
  local at = stored(redis.call('HGET', KEYS[3], 'at'))
  if at then
    redis.call('HSET', KEYS[3], 'at', string.format('%.0f', at - (server - without_jump)))
  end
end
local text = string.format('%.0f', fleet)
redis.call('HSET', KEYS[2], 'server', string.format('%.0f', server), 'fleet', text)
-- No instance has renewed for this long, though each renews several times within a lease: the server stood still or
-- could not be reached. Leases that were valid then are extended by the same time.
local silent = fleet - (before or fleet)
if silent > tonumber(ARGV[2]) / 2 then
  local extended = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', before), '+inf', 'WITHSCORES')
  for n = 1, #extended, 2 do
    local ends = math.min(tonumber(extended[n + 1]) + silent, fleet + tonumber(ARGV[2]))
    redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', ends), extended[n])
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text)
local latest = string.format('%.0f', fleet + math.max(tonumber(ARGV[6]), tonumber(ARGV[2])))
local too_late = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. latest, '+inf')
if #too_late > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. latest, '+inf')
end
local is_new = redis.call('ZADD', KEYS[1], string.format('%.0f', fleet + tonumber(ARGV[2])), ARGV[1]) == 1
if is_new then
  -- An instance whose user may not publish keeps its lease; other instances notice it at their next renewal.
  redis.pcall('PUBLISH', ARGV[4], ARGV[1])
end
local answer = { text, string.format('%.0f', server), '', is_new and '1' or '0',
  ahead and string.format('%.0f', ahead) or '', string.format('%.0f', stepped), skipped,
  string.format('%.0f', #too_late) }
for _, instance in ipairs(too_late) do
  answer[#answer + 1] = instance
end
local valid = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for n = 1, #valid, 2 do
  answer[#answer + 1] = valid[n]
  if answer[3] == '' and valid[n] ~= ARGV[1] then
    answer[3] = string.format('%.0f', tonumber(valid[n + 1]))
  end
end
return answer
