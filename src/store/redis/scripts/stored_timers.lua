-- The first part of scripts that register or cancel timers: it reads the stored timers among their arguments.
--
-- KEYS[5] past_timers  hash  id of a timer that fired or was cancelled -> see timer_text.rs
-- KEYS[5+p]            hash  page p of the timers that wait: the same
--
-- ARGV from `a` on: for each of so many pages the number of its timers N, N ids, and `others` times N arguments.
-- Returns nothing: it declares a function. The function answers for each page where its arguments begin, N, and the
-- stored text of each timer that waits; and that of the others, by id. It fails if a key is of a wrong type.
local function stored_timers(a, pages, others)
  local found, ids, past = {}, {}, {}
  for p = 1, pages do
    local count = tonumber(ARGV[a])
    local known = redis.call('HMGET', KEYS[5 + p], unpack(ARGV, a + 1, a + count))
    for i = 1, count do
      if not known[i] then
        ids[#ids + 1] = ARGV[a + i]
      end
    end
    found[p] = { a = a, count = count, known = known }
    a = a + 1 + (1 + others) * count
  end
  if redis.call('HLEN', KEYS[5]) > 0 and #ids > 0 then
    for i, text in ipairs(redis.call('HMGET', KEYS[5], unpack(ids))) do
      past[ids[i]] = text
    end
  end
  return found, past
end

