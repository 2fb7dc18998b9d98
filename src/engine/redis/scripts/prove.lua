-- Moves forward up to when the filters of kinds were heard, and writes down what of a kind was not.
--
-- KEYS[1] filters  hash    "<kind> <filter>" -> up to when it was heard (ms)
-- KEYS[2] heard    hash    kinds -> one more with each change of the ledgers of kinds
-- KEYS[3] ...      zset    for each kind: "<from> <to>" (ms) -> to
--
-- ARGV[1] up to here everything came all the way (ms)
-- ARGV[2] the gap that makes an interval (ms)
-- ARGV[3] intervals that ended before this are of no use to anybody any more (ms)
-- ARGV[4] ... for each filter: the number of its kind's key, the kind, the filter
--
-- Returns nothing.
local sent = tonumber(ARGV[1])
local known, last = {}, {}
local all = redis.call('HGETALL', KEYS[1])
for n = 1, #all, 2 do
  local kind, at = string.match(all[n], '^(%S+) '), tonumber(all[n + 1])
  if kind and at then
    known[all[n]] = at
    last[kind] = math.max(last[kind] or at, at)
  end
end
for n = 4, #ARGV, 3 do
  local key, name = KEYS[tonumber(ARGV[n])], ARGV[n + 1] .. ' ' .. ARGV[n + 2]
  -- A filter that is new was not heard while others of its kind were.
  local before = known[name] or last[ARGV[n + 1]]
  if before and sent - before > tonumber(ARGV[2]) then
    redis.call('ZADD', key, ARGV[1], string.format('%.0f', before) .. ' ' .. ARGV[1])
    redis.call('ZREMRANGEBYSCORE', key, '-inf', ARGV[3])
    local version = tonumber(redis.call('HGET', KEYS[2], 'kinds') or 0) or 0
    redis.call('HSET', KEYS[2], 'kinds', string.format('%.0f', version + 1))
  end
  if not known[name] or known[name] < sent then
    redis.call('HSET', KEYS[1], name, ARGV[1])
  end
end
return redis.status_reply('OK')
