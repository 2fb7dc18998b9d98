-- Cancels timers of one partition that wait.
--
-- KEYS[1] timers        zset  id of a timer that waits -> when it is looked at (ms)
-- KEYS[2] timers_ended  zset  id of a timer that fired or was cancelled -> its moment (ms)
-- KEYS[3] timers_kept   zset  the same -> until when it is kept (ms)
-- KEYS[4] timer_counts  hash  type -> how many wait
-- KEYS[5] past_timers   hash  id of a timer that fired or was cancelled -> see timer_text.rs
-- KEYS[5+p]             hash  page p of the timers that wait: the same
--
-- ARGV[1] now (ms), ARGV[2] now as it is stored, ARGV[3] how long timers of other types are kept (ms), ARGV[4] number of
-- types T, then T types, and how long timers of each are kept (ms); the number of pages, then for each page the number of
-- its timers N, N ids, and N times the stored timer as the caller read it, or "" for any
--
-- Returns for each 1 if it was waiting, 2 if it is another one than the caller read, 3 if it has fired or was cancelled
-- before, 4 if it is unknown.
for k = 1, 3 do
  -- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
  redis.call('ZCARD', KEYS[k])
end
local counts = counts_of(KEYS[4])
local now, types, keep = tonumber(ARGV[1]), tonumber(ARGV[4]), {}
local others = string.format('%.0f', now + tonumber(ARGV[3]))
for t = 1, types do
  keep[ARGV[4 + t]] = string.format('%.0f', now + tonumber(ARGV[4 + types + t]))
end
local answers, left, over, ended, kept = {}, {}, {}, {}, {}
local pages, past = stored_timers(6 + 2 * types, tonumber(ARGV[5 + 2 * types]), 1)
for p, page in ipairs(pages) do
  local leave = {}
  for i = 1, page.count do
    local id, expected, known = ARGV[page.a + i], ARGV[page.a + page.count + i], page.known[i]
    local of, moment, data = string.match(known or '', '^w(%S+) (%S+) (.*)$')
    local answer = of and 1 or (known or past[id]) and 3 or 4
    if answer == 1 and expected ~= '' and expected ~= known then
      answer = 2
    end
    if answer == 1 then
      counts.add(of, -1)
      over[#over + 1], over[#over + 2] = id, 'c' .. of .. ' ' .. moment .. ' ' .. ARGV[2] .. ' - ' .. data
      leave[#leave + 1], left[#left + 1] = id, id
      ended[#ended + 1], ended[#ended + 2] = string.format('%.0f', tonumber(moment, 36)), id
      kept[#kept + 1], kept[#kept + 2] = keep[of] or others, id
    end
    answers[#answers + 1] = answer
  end
  if #leave > 0 then
    redis.call('HDEL', KEYS[5 + p], unpack(leave))
  end
end
if #left > 0 then
  redis.call('ZREM', KEYS[1], unpack(left))
  redis.call('ZADD', KEYS[2], unpack(ended))
  redis.call('ZADD', KEYS[3], unpack(kept))
  redis.call('HSET', KEYS[5], unpack(over))
end
counts.write()
return answers
