-- Writes change-sets of one shape, each if all that it expects is so. No two of them touch one cell or entry.
--
-- KEYS  for each column of the shape its hash, zset or stream
--
-- ARGV  how many change-sets there are; for each column what it is; then for each column the names of all change-sets,
--       and after these their values or scores, where the column has them:
--       has     the hash has these fields with these values
--       lacks   the hash has none of these fields
--       is_at   the zset has these members with these scores
--       is_off  the zset has none of these members
--       put     writes fields with values
--       remove  removes fields
--       enter   writes members with scores
--       leave   removes members
--       append  instead of names the most entries of the stream; adds entries
--
-- Returns for each change-set 1 if it is written, else 0.
local count, at = tonumber(ARGV[1]), 2 + #KEYS
local width = { has = 2, lacks = 1, is_at = 2, is_off = 1, put = 2, remove = 1, enter = 2, leave = 1, append = 2 }
local written = {}
for n = 1, count do
  written[n] = 1
end

-- Marks the change-sets for which something else is stored.
local function compare(now, is_expected)
  for n = 1, count do
    if not is_expected(now[n], n) then
      written[n] = 0
    end
  end
end

local read = {
  has = function(key, from)
    compare(redis.call('HMGET', key, unpack(ARGV, from, from + count - 1)), function(now, n)
      return now == ARGV[from + count + n - 1]
    end)
  end,
  lacks = function(key, from)
    compare(redis.call('HMGET', key, unpack(ARGV, from, from + count - 1)), function(now)
      return not now
    end)
  end,
  is_at = function(key, from)
    compare(redis.call('ZMSCORE', key, unpack(ARGV, from, from + count - 1)), function(now, n)
      return now and tonumber(now) == tonumber(ARGV[from + count + n - 1])
    end)
  end,
  is_off = function(key, from)
    compare(redis.call('ZMSCORE', key, unpack(ARGV, from, from + count - 1)), function(now)
      return not now
    end)
  end,
  -- A key of a wrong type fails here, before any write.
  put = function(key) redis.call('HLEN', key) end,
  remove = function(key) redis.call('HLEN', key) end,
  enter = function(key) redis.call('ZCARD', key) end,
  leave = function(key) redis.call('ZCARD', key) end,
  append = function(key) redis.call('XLEN', key) end,
}
local write = {
  put = function(key, words) redis.call('HSET', key, unpack(words)) end,
  remove = function(key, words) redis.call('HDEL', key, unpack(words)) end,
  enter = function(key, words) redis.call('ZADD', key, unpack(words)) end,
  leave = function(key, words) redis.call('ZREM', key, unpack(words)) end,
  append = function(key, words)
    for word = 1, #words, 2 do
      redis.call('XADD', key, 'MAXLEN', words[word], '*', 'entry', words[word + 1])
    end
  end,
}

local from = at
for column, key in ipairs(KEYS) do
  local what = ARGV[1 + column]
  read[what](key, from)
  from = from + width[what] * count
end
from = at
for column, key in ipairs(KEYS) do
  local what = ARGV[1 + column]
  local words = {}
  for n = 1, write[what] and count or 0 do
    if written[n] == 1 then
      local name, value = ARGV[from + n - 1], ARGV[from + count + n - 1]
      if what == 'enter' then
        words[#words + 1] = value
      end
      words[#words + 1] = name
      if what == 'put' or what == 'append' then
        words[#words + 1] = value
      end
    end
  end
  if #words > 0 then
    write[what](key, words)
  end
  from = from + width[what] * count
end
return written
