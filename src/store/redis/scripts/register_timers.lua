-- Registers timers of one partition: new ones, and others that wait get another moment, type or data.
--
-- KEYS[1] timers        zset  id of a timer that waits -> when it is looked at (ms)
-- KEYS[2] timers_ended  zset  id of a timer that fired or was cancelled -> its moment (ms)
-- KEYS[3] timers_kept   zset  the same -> until when it is kept (ms)
-- KEYS[4] timer_counts  hash  type -> how many wait
-- KEYS[5] past_timers   hash  id of a timer that fired or was cancelled -> see timer_text.rs
-- KEYS[5+p]             hash  page p of the timers that wait: the same
--
-- ARGV[1] 1: only new ids, else 0; ARGV[2] number of pages, then for each page the number of its timers N, N ids, N moments
-- (ms), and N stored timers
--
-- Returns for each 1 if it is new, 2 if it is changed, 3 if its id is known and only a new one was wanted, 4 if it has
-- fired at this moment.
for k = 1, 3 do
  -- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
  redis.call('ZCARD', KEYS[k])
end
local counts = counts_of(KEYS[4])
local answers, index, again = {}, {}, {}
local pages, past = stored_timers(3, tonumber(ARGV[2]), 2)
for p, page in ipairs(pages) do
  local write = {}
  for i = 1, page.count do
    local id, due, text = ARGV[page.a + i], ARGV[page.a + page.count + i], ARGV[page.a + 2 * page.count + i]
    local known, answer = page.known[i] or past[id], 1
    if known then
      local letter, of, moment = string.match(known, '^(.)(%S+) (%S+)')
      if ARGV[1] == '1' then
        answer = 3
      elseif letter == 'w' then
        answer = 2
        counts.add(of, -1)
      elseif letter ~= 'c' and moment == string.match(text, '^%S+ (%S+)') then
        answer = 4
      else
        again[#again + 1] = id
      end
    end
    if answer < 3 then
      counts.add(string.match(text, '^w(%S+)'), 1)
      write[#write + 1], write[#write + 2] = id, text
      index[#index + 1], index[#index + 2] = due, id
    end
    answers[#answers + 1] = answer
  end
  if #write > 0 then
    redis.call('HSET', KEYS[5 + p], unpack(write))
  end
end
if #index > 0 then
  redis.call('ZADD', KEYS[1], unpack(index))
end
if #again > 0 then
  redis.call('ZREM', KEYS[2], unpack(again))
  redis.call('ZREM', KEYS[3], unpack(again))
  redis.call('HDEL', KEYS[5], unpack(again))
end
counts.write()
return answers
