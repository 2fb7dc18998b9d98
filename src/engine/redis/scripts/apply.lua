-- Applies changes to units of one partition, each in full or not at all.
--
-- A change holds for the unit as it was read: if its key or its facts are different now, or it is
-- to be taken out of the index and is not in there, nothing of it is applied. Removing it from the
-- index is the lock: of several callers exactly one removes it. Nobody comes between the look at the
-- index and the removal, for a script is one step.
--
-- Everything that is asked or written in the same place goes there in one command: a command costs
-- more than what it does. So the changes come by the page that holds the facts of their units, and
-- changes of one unit come one after the other: only the first of them is considered.
--
-- KEYS[1] deadlines  zset  <kind>:<unit> -> next look (ms)
-- KEYS[2] past       zset  record id -> detected at (ms), closed records
-- KEYS[3] open       zset  record id -> detected at (ms), open records
-- KEYS[4] archive    hash  record id -> record (JSON)
-- KEYS[5] closed     zset  record id -> closed at (ms)
-- KEYS[6] outbox     stream
-- KEYS[6+p] facts    hash, page p of P
-- KEYS[6+P+i] alive  string, of the unit of change i of N
--
-- ARGV[1] P, ARGV[1+p] number of changes on page p
-- then 11 columns, the first of all changes before the second of all. Each begins with how many values
-- it has: N, or 1 that holds for all changes; in a mass offline that spares half of the arguments.
--  1 <kind>:<unit>, always N
--  2 value of alive as read, "" if there was none
--  3 facts as read, "" if there were none
--  4 alive from now on: "" as it is, "-" none, else the value
--  5 for how long the value stands (ms)
--  6 index from now on: "" as it is, "-" taken out, else the next look (ms)
--  7 facts from now on, "" for none
--  8 record id, "" if no record changes
--  9 detected at (ms)
-- 10 closed at (ms), "" for an open record
-- 11 record (JSON)
--
-- Returns for each change 1 if it was applied, else 0.
local pages = tonumber(ARGV[1])
local count = #KEYS - 6 - pages
local at = 2 + pages

-- Where the next column lies: value i is ARGV[first + by * i].
local function column()
  local values = tonumber(ARGV[at])
  local by = values == count and 1 or 0
  local first = at + 1 - by
  at = at + 1 + values
  return first, by
end

local unit = column()
local alive_seen, alive_seen_by = column()
local facts_seen, facts_seen_by = column()
local alive_now, alive_now_by = column()
local ttl, ttl_by = column()
local look, look_by = column()
local facts_now, facts_now_by = column()
local id, id_by = column()
local detected, detected_by = column()
local closed, closed_by = column()
local json, json_by = column()

local alive = redis.call('MGET', unpack(KEYS, 7 + pages))
local indexed
local answers, expired, taken, looks = {}, {}, {}, {}
local archive, past, open, shut, over, reopened, news = {}, {}, {}, {}, {}, {}, {}
local from = 0
for page = 1, pages do
  local facts = redis.call('HMGET', KEYS[6 + page], unpack(ARGV, unit + from + 1, unit + from + ARGV[1 + page]))
  local known, unknown = {}, {}
  for place = 1, #facts do
    local i = from + place
    local name, next_look = ARGV[unit + i], ARGV[look + look_by * i]
    local holds = (alive[i] or '') == ARGV[alive_seen + alive_seen_by * i]
      and (facts[place] or '') == ARGV[facts_seen + facts_seen_by * i]
      and name ~= (i > 1 and ARGV[unit + i - 1])
    if holds and next_look == '-' then
      indexed = indexed or redis.call('ZMSCORE', KEYS[1], unpack(ARGV, unit + 1, unit + count))
      holds = indexed[i]
    end
    if holds then
      local value = ARGV[alive_now + alive_now_by * i]
      if value == '-' then
        if alive[i] then
          expired[#expired + 1] = KEYS[6 + pages + i]
        end
      elseif value ~= '' then
        redis.call('SET', KEYS[6 + pages + i], value, 'PX', ARGV[ttl + ttl_by * i])
      end
      if next_look == '-' then
        taken[#taken + 1] = name
      elseif next_look ~= '' then
        looks[#looks + 1] = next_look
        looks[#looks + 1] = name
      end
      value = ARGV[facts_now + facts_now_by * i]
      if value == '' then
        unknown[#unknown + 1] = name
      elseif value ~= facts[place] then
        known[#known + 1] = name
        known[#known + 1] = value
      end
      local record = ARGV[id + id_by * i]
      if record ~= '' then
        archive[#archive + 1] = record
        archive[#archive + 1] = ARGV[json + json_by * i]
        news[#news + 1] = 'record'
        news[#news + 1] = ARGV[json + json_by * i]
        if ARGV[closed + closed_by * i] == '' then
          open[#open + 1] = ARGV[detected + detected_by * i]
          open[#open + 1] = record
          reopened[#reopened + 1] = record
        else
          past[#past + 1] = ARGV[detected + detected_by * i]
          past[#past + 1] = record
          shut[#shut + 1] = ARGV[closed + closed_by * i]
          shut[#shut + 1] = record
          over[#over + 1] = record
        end
      end
    end
    answers[i] = holds and 1 or 0
  end
  if #known > 0 then
    redis.call('HSET', KEYS[6 + page], unpack(known))
  end
  if #unknown > 0 then
    redis.call('HDEL', KEYS[6 + page], unpack(unknown))
  end
  from = from + #facts
end

if #expired > 0 then
  redis.call('DEL', unpack(expired))
end
if #taken > 0 then
  redis.call('ZREM', KEYS[1], unpack(taken))
end
if #looks > 0 then
  redis.call('ZADD', KEYS[1], unpack(looks))
end
if #archive > 0 then
  redis.call('HSET', KEYS[4], unpack(archive))
end
if #open > 0 then
  redis.call('ZADD', KEYS[3], unpack(open))
  redis.call('ZREM', KEYS[2], unpack(reopened))
  redis.call('ZREM', KEYS[5], unpack(reopened))
end
if #shut > 0 then
  redis.call('ZREM', KEYS[3], unpack(over))
  redis.call('ZADD', KEYS[2], unpack(past))
  redis.call('ZADD', KEYS[5], unpack(shut))
end
if #news > 0 then
  redis.call('XADD', KEYS[6], '*', unpack(news))
end
return answers
