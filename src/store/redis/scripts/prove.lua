-- Moves forward up to when filters of kinds were heard, and writes down what of a kind was not.
--
-- KEYS[1] filters  hash    "<kind> <filter>" -> up to when it was heard (ms)
-- KEYS[2] heard    hash    kinds -> one more with each change of the ledgers of kinds
-- KEYS[3] ...      zset    for each kind: "<from> <to>" (ms) -> to
--
-- ARGV[1] ... for each proof: the number of its kind's key, the kind, the filter, up to when it was heard (ms), the
--             gap that makes an interval (ms), and before when intervals are of no use to anybody any more (ms)
--
-- Returns nothing.
local known, last = {}, {}
local all = redis.call('HGETALL', KEYS[1])
for n = 1, #all, 2 do
  local kind, at = string.match(all[n], '^(%S+) '), tonumber(all[n + 1])
  if kind and at then
    known[all[n]] = at
    last[kind] = math.max(last[kind] or at, at)
  end
end
for n = 1, #ARGV, 6 do
  local key, kind, name = KEYS[tonumber(ARGV[n])], ARGV[n + 1], ARGV[n + 1] .. ' ' .. ARGV[n + 2]
  local sent = tonumber(ARGV[n + 3])
  -- A filter that is new was not heard while others of its kind were.
  local before = known[name] or last[kind]
  if before and sent - before > tonumber(ARGV[n + 4]) then
    redis.call('ZADD', key, ARGV[n + 3], string.format('%.0f', before) .. ' ' .. ARGV[n + 3])
    redis.call('ZREMRANGEBYSCORE', key, '-inf', ARGV[n + 5])
    local version = tonumber(redis.call('HGET', KEYS[2], 'kinds') or 0) or 0
    redis.call('HSET', KEYS[2], 'kinds', string.format('%.0f', version + 1))
  end
  if not known[name] or known[name] < sent then
    redis.call('HSET', KEYS[1], name, ARGV[n + 3])
    known[name] = sent
  end
end
return redis.status_reply('OK')
