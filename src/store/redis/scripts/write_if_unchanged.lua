-- Writes if hashes are unchanged since they were read.
--
-- KEYS[1] ... the hashes, then other keys that are written
--
-- ARGV[1]     number of hashes
-- Then for each: its scope, "all": the hash has no other fields than these, "some": it may have others, "none": it was
--             not read yet; the number of fields, and for each: "=" if the field has this text, ">" if it has this text
--             or the same with a later moment at its beginning, "-" if it is absent; its name; the text
-- Then for each write: the command, the number of its key, the number of arguments, the arguments. RAISE sets a
--             field to a text that begins with a moment, unless the field begins with a later moment
--
-- Returns OK, or the contents of all hashes if one has changed: nothing is written then.
local at = 1
local function words(count)
  at = at + count
  return unpack(ARGV, at - count, at - 1)
end

local function is_later(now, before)
  local moment, rest = string.match(now, '^(%d+)(.*)$')
  local known, tail = string.match(before, '^(%d+)(.*)$')
  return moment and known and rest == tail and tonumber(moment) >= tonumber(known)
end

local hashes, is_same = {}, true
for n = 1, tonumber(words(1)) do
  local all, values, known = redis.call('HGETALL', KEYS[n]), {}, 0
  for i = 1, #all, 2 do
    values[all[i]] = all[i + 1]
  end
  local scope, count = words(2)
  for _ = 1, tonumber(count) do
    local how, field, text = words(3)
    local now = values[field]
    if how == '-' then
      is_same = is_same and not now
    else
      known = known + 1
      is_same = is_same and now and (now == text or how == '>' and is_later(now, text))
    end
  end
  if scope == 'none' or scope == 'all' and #all ~= 2 * known then
    is_same = false
  end
  hashes[n] = all
end
if not is_same then
  return hashes
end

local write = {
  HSET = function(key, field, text) redis.call('HSET', key, field, text) end,
  RAISE = function(key, field, text)
    local now = string.match(redis.call('HGET', key, field) or '', '^%d+')
    if not now or tonumber(now) < tonumber(string.match(text, '^%d+')) then
      redis.call('HSET', key, field, text)
    end
  end,
  HDEL = function(key, field) redis.call('HDEL', key, field) end,
  PSETEX = function(key, ms, text) redis.call('PSETEX', key, ms, text) end,
  ZADD = function(key, score, member) redis.call('ZADD', key, score, member) end,
  ZREMRANGEBYSCORE = function(key, from, to) redis.call('ZREMRANGEBYSCORE', key, from, to) end,
  XADD = function(key, field, text) redis.call('XADD', key, '*', field, text) end,
}
while at <= #ARGV do
  local command, key, count = words(3)
  write[command](KEYS[tonumber(key)], words(tonumber(count)))
end
return redis.status_reply('OK')
