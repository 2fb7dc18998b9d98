-- Takes or renews the lease of an instance, and tells the time of the fleet.
--
-- The one script that reads a clock: what it tells is the time that every caller brings along.
-- Where the server's clock went back (it was set, or another server took over) the time of the fleet
-- goes on from where it was, a little slower, until the clock has come up to it.
--
-- KEYS[1] roster  zset  instance -> end of its lease (ms, time of the fleet)
-- KEYS[2] clock   hash  server -> the server's clock (ms), fleet -> the time of the fleet (ms), both
--                       as of the last renewal
-- KEYS[3] heard   hash  at -> up to when Rollcall has heard (ms)
--
-- ARGV[1] instance
-- ARGV[2] length of the lease (ms)
-- ARGV[3] up to when Rollcall has heard (ms), 0 if it has not
-- ARGV[4] the channel on which others are told of a new one
-- ARGV[5] what the server's clock would have told by now if it had not jumped forward (ms), "" if it
--         did not
--
-- ARGV[6] the longest lease that any instance asks for (ms); one that ends later is removed
--
-- Returns {time of the fleet (ms), the server's clock (ms), when the first lease of another ends (ms), "" if there is
-- none, number of leases that were removed, as many of their names, instance, ...} with every instance whose lease stands.
--
-- The rule is that of presence/roster.rs; a test compares them.
local read = redis.call('TIME')
local server = tonumber(read[1]) * 1000 + math.floor(tonumber(read[2]) / 1000)
local last = redis.call('HMGET', KEYS[2], 'server', 'fleet')
local fleet = math.max(server, tonumber(ARGV[3]))
if tonumber(last[2]) then
  -- A jump forward is no time that has passed.
  local passed = math.min(math.max(server - (tonumber(last[1]) or server), 0), tonumber(ARGV[2]))
  fleet = math.max(fleet, tonumber(last[2]) + math.floor(passed * 995 / 1000))
end
-- What the jump took from expiry keys it takes from what was heard. The first renewal after it does that.
local without_jump = tonumber(ARGV[5])
local heard = without_jump and (tonumber(last[1]) or without_jump) <= without_jump and redis.call('HGET', KEYS[3], 'at')
if tonumber(heard) then
  redis.call('HSET', KEYS[3], 'at', string.format('%.0f', tonumber(heard) - (server - without_jump)))
end
local text = string.format('%.0f', fleet)
redis.call('HSET', KEYS[2], 'server', string.format('%.0f', server), 'fleet', text)
-- For so long no instance has renewed, though each does several times within a lease: the server stood
-- still or could not be reached. Leases that stood then stand for as long as before.
local silent = fleet - (tonumber(last[2]) or fleet)
if silent > tonumber(ARGV[2]) / 2 then
  local stood = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. last[2], '+inf', 'WITHSCORES')
  for n = 1, #stood, 2 do
    local ends = math.min(tonumber(stood[n + 1]) + silent, fleet + tonumber(ARGV[2]))
    redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', ends), stood[n])
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text)
local latest = string.format('%.0f', fleet + math.max(tonumber(ARGV[6]), tonumber(ARGV[2])))
local not_believed = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. latest, '+inf')
if #not_believed > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. latest, '+inf')
end
local is_new = redis.call('ZADD', KEYS[1], string.format('%.0f', fleet + tonumber(ARGV[2])), ARGV[1]) == 1
if is_new then
  -- A user without the right to publish keeps its lease; others notice when they renew theirs.
  redis.pcall('PUBLISH', ARGV[4], ARGV[1])
end
local answer = { text, string.format('%.0f', server), '', string.format('%.0f', #not_believed) }
for _, instance in ipairs(not_believed) do
  answer[#answer + 1] = instance
end
local there = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for n = 1, #there, 2 do
  answer[#answer + 1] = there[n]
  if answer[3] == '' and there[n] ~= ARGV[1] then
    answer[3] = string.format('%.0f', tonumber(there[n + 1]))
  end
end
return answer
