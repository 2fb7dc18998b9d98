-- The first part of finish.lua and set_next_attempt.lua: it puts attempts on record.
--
-- The record is a sorted set by when its entries were written (ms). A member is an entry: how many bytes were written
-- before it, 16 digits and a space, and then its text. So the first and the last member tell how large the set is.
--
-- KEYS: the record is named by its caller. No other key is read here.
-- ARGV from `first` on: now (ms), how long entries are kept (ms), the most bytes, number of texts T, then T texts.
-- Returns nothing: it declares two functions, one for the number of the argument after them.
local function after_attempts(first)
  return first + 4 + tonumber(ARGV[first + 3])
end
local function keep_attempts(record, first)
  local count = tonumber(ARGV[first + 3])
  if count == 0 then
    return
  end
  local function bytes_before(member)
    return tonumber(string.sub(member or '', 1, 16)) or 0
  end
  local newest = redis.call('ZRANGE', record, -1, -1)[1]
  local total = newest and bytes_before(newest) + #newest or 0
  for t = first + 4, first + 3 + count do
    redis.call('ZADD', record, ARGV[first], string.format('%016.0f ', total) .. ARGV[t])
    total = total + #ARGV[t] + 17
  end
  redis.call('ZREMRANGEBYSCORE', record, '-inf', string.format('(%.0f', tonumber(ARGV[first]) - tonumber(ARGV[first + 1])))
  -- These steps remove more than is added here, unless entries are few.
  for _ = 1, 2 * count + 8 do
    local oldest = redis.call('ZRANGE', record, 0, 0)[1]
    if not oldest or total - bytes_before(oldest) <= tonumber(ARGV[first + 2]) then
      break
    end
    redis.call('ZREM', record, oldest)
  end
end

