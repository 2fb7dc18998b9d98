-- Writes steps, each only if the values from which it was decided are unchanged.
--
-- KEYS  the keys of conditions and writes, which name them by their numbers
--
-- ARGV  for each step the number of its conditions, and for each: "field", the number of its hash, a field, its text;
--       "absent", the number of its hash, a field, ""; or "score", the number of its zset, a member, its score. Then the
--       number of its writes, and for each: the command, the number of its key, the number of arguments, the arguments
--
-- Returns for each step 1 if it is written, else 0.
local at = 1
local function words(count)
  at = at + count
  return unpack(ARGV, at - count, at - 1)
end

local holds = {
  field = function(key, field, text) return redis.call('HGET', key, field) == text end,
  absent = function(key, field) return not redis.call('HGET', key, field) end,
  score = function(key, member, score)
    return tonumber(redis.call('ZMSCORE', key, member)[1] or '') == tonumber(score)
  end,
}
-- A key of a wrong type fails the first of these calls, before any write.
local types = {
  HSET = function(key) redis.call('HLEN', key) end,
  ZADD = function(key) redis.call('ZCARD', key) end,
  XADD = function(key) redis.call('XLEN', key) end,
}
types.HSETNX, types.HDEL, types.ZREM = types.HSET, types.HSET, types.ZADD
local write = {
  HSET = function(...) redis.call('HSET', ...) end,
  HSETNX = function(...) redis.call('HSETNX', ...) end,
  HDEL = function(...) redis.call('HDEL', ...) end,
  ZADD = function(...) redis.call('ZADD', ...) end,
  ZREM = function(...) redis.call('ZREM', ...) end,
  XADD = function(...) redis.call('XADD', ...) end,
}

local written = {}
while at <= #ARGV do
  local is_same = true
  for _ = 1, tonumber(words(1)) do
    local what, key, name, text = words(4)
    is_same = holds[what](KEYS[tonumber(key)], name, text) and is_same
  end
  local from, count = at + 1, tonumber(words(1))
  for _, apply in ipairs({ types, write }) do
    at = from
    for _ = 1, count do
      local command, key, arguments = words(3)
      if is_same then
        apply[command](KEYS[tonumber(key)], words(tonumber(arguments)))
      else
        at = at + tonumber(arguments)
      end
    end
  end
  written[#written + 1] = is_same and 1 or 0
end
return written
