-- Applies changes to units of one partition, each in full or not at all.
--
-- A change applies only to the unit as it was read: if its key or its facts have changed, or if the change takes the
-- unit out of the index and the index does not have it, nothing of the change is applied. A key that was absent is
-- not read again: only a change creates a key, and it also changes the facts. Removing the unit from the index is the
-- lock: exactly one of several callers removes it. No other command runs between the read of the index and the
-- removal, because a script is one step.
--
-- One command reads or writes everything in the same key, because the overhead of a command exceeds its work. So the
-- changes are sorted by the page of their facts. Changes of one unit are adjacent, and only the first counts.
--
-- An open record is stored in the facts of its unit, and its outbox entry is the facts, too. Besides them an opening
-- writes only the unit's entry in the index of offline units. An opening is one rule that is written in two places:
-- here and in deadline_check.rs. They write the same keys; the test
-- openings_are_written_alike_by_transaction_and_script compares them.
--
-- KEYS[1] deadlines  zset  <kind>:<unit> -> next check (ms)
-- KEYS[2] offline    zset  <kind>:<unit> -> detected at (ms), units with an open record
-- KEYS[3] archive    hash  record id -> record (JSON), closed records
-- KEYS[4] past       zset  record id -> detected at (ms), closed records
-- KEYS[5] closed     zset  record id -> closed at (ms)
-- KEYS[6] outbox     stream
-- KEYS[6+p] facts    hash, page p of P
-- then the expiry keys of the marked units, in their order: string
--
-- ARGV[1] P, ARGV[1+p] number of changes on page p
-- then 12 columns, each for all changes. A column begins with the number of its values: N, or 1 for a value that all
-- changes share; in a storm that saves half of the arguments.
--  1 <kind>:<unit>, always N
--  2 "1" if the unit is marked: it had an expiry key, or gets one
--  3 the value of that key as read, "" for no key
--  4 facts as read, "" for none
--  5 new expiry key: "" unchanged, "-" deleted, else the value
--  6 TTL of the value (ms)
--  7 index: "" unchanged, "-" taken out, else the next check (ms)
--  8 new facts, "" for none
--  9 detected at (ms) of the record that is opened or closed, "" for no record
-- 10 id of that record
-- 11 closed at (ms), "" if the record is opened
-- 12 that record (JSON), "" if it is opened
--
-- Returns for each change 1 if it was applied, else 0.
--
-- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
redis.call('ZCARD', KEYS[1])
redis.call('ZCARD', KEYS[2])
redis.call('HLEN', KEYS[3])
redis.call('ZCARD', KEYS[4])
redis.call('ZCARD', KEYS[5])
redis.call('XLEN', KEYS[6])

local pages = tonumber(ARGV[1])
local at = 2 + pages
local count = tonumber(ARGV[at])

-- The location of the next column: value i is ARGV[first + by * i].
local function column()
  local values = tonumber(ARGV[at])
  local by = values == count and 1 or 0
  local first = at + 1 - by
  at = at + 1 + values
  return first, by
end

local unit = column()
local marked, marked_by = column()
local alive_seen, alive_seen_by = column()
local facts_seen, facts_seen_by = column()
local alive_now, alive_now_by = column()
local ttl, ttl_by = column()
local check_at, check_at_by = column()
local facts_now, facts_now_by = column()
local detected, detected_by = column()
local id, id_by = column()
local closed, closed_by = column()
local json, json_by = column()

local last_key = 6 + pages
local alive = #KEYS > last_key and redis.call('MGET', unpack(KEYS, last_key + 1)) or {}
local marks = 0
local indexed
local answers, keys, expired, taken, checks = {}, {}, {}, {}, {}
local offline, opened, back, archive, past, closings, entry = {}, {}, {}, {}, {}, {}, {}
local from = 0
local read = {}
for page = 1, pages do
  read[page] = redis.call('HMGET', KEYS[6 + page], unpack(ARGV, unit + from + 1, unit + from + ARGV[1 + page]))
  from = from + #read[page]
end
from = 0
for page = 1, pages do
  local facts = read[page]
  local known, unknown = {}, {}
  for index = 1, #facts do
    local i = from + index
    local name, next_check = ARGV[unit + i], ARGV[check_at + check_at_by * i]
    local existing, key
    if ARGV[marked + marked_by * i] == '1' then
      marks = marks + 1
      existing, key = alive[marks], KEYS[last_key + marks]
    end
    local holds = (existing or '') == ARGV[alive_seen + alive_seen_by * i]
      and (facts[index] or '') == ARGV[facts_seen + facts_seen_by * i]
      and name ~= (i > 1 and ARGV[unit + i - 1])
    if holds and next_check == '-' then
      indexed = indexed or redis.call('ZMSCORE', KEYS[1], unpack(ARGV, unit + 1, unit + count))
      holds = indexed[i]
    end
    if holds then
      local value = ARGV[alive_now + alive_now_by * i]
      if value == '-' then
        if existing then
          expired[#expired + 1] = key
        end
      elseif value ~= '' then
        keys[#keys + 1] = { key, value, ARGV[ttl + ttl_by * i] }
      end
      if next_check == '-' then
        taken[#taken + 1] = name
      elseif next_check ~= '' then
        checks[#checks + 1] = next_check
        checks[#checks + 1] = name
      end
      value = ARGV[facts_now + facts_now_by * i]
      if value == '' then
        unknown[#unknown + 1] = name
      elseif value ~= facts[index] then
        known[#known + 1] = name
        known[#known + 1] = value
      end
      local detected_at = ARGV[detected + detected_by * i]
      if detected_at ~= '' then
        local record, closed_at = ARGV[id + id_by * i], ARGV[closed + closed_by * i]
        if closed_at == '' then
          opened[#opened + 1] = record
          offline[#offline + 1] = detected_at
          offline[#offline + 1] = name
          entry[#entry + 1] = name
          entry[#entry + 1] = value
        else
          back[#back + 1] = name
          past[#past + 1] = detected_at
          past[#past + 1] = record
          closings[#closings + 1] = closed_at
          closings[#closings + 1] = record
          entry[#entry + 1] = 'record'
          entry[#entry + 1] = ARGV[json + json_by * i]
          archive[#archive + 1] = record
          archive[#archive + 1] = ARGV[json + json_by * i]
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

for _, one in ipairs(keys) do
  redis.call('SET', one[1], one[2], 'PX', one[3])
end
if #expired > 0 then
  redis.call('DEL', unpack(expired))
end
if #taken > 0 then
  redis.call('ZREM', KEYS[1], unpack(taken))
end
if #checks > 0 then
  redis.call('ZADD', KEYS[1], unpack(checks))
end
if #offline > 0 then
  redis.call('ZADD', KEYS[2], unpack(offline))
  if redis.call('EXISTS', KEYS[3]) == 1 then
    -- A closed record is opened again if its unit was allowed a longer silence for a while: remove it from the closed
    -- records.
    if redis.call('HDEL', KEYS[3], unpack(opened)) > 0 then
      redis.call('ZREM', KEYS[4], unpack(opened))
      redis.call('ZREM', KEYS[5], unpack(opened))
    end
  end
end
if #back > 0 then
  redis.call('ZREM', KEYS[2], unpack(back))
  redis.call('HSET', KEYS[3], unpack(archive))
  redis.call('ZADD', KEYS[4], unpack(past))
  redis.call('ZADD', KEYS[5], unpack(closings))
end
if #entry > 0 then
  redis.call('XADD', KEYS[6], '*', unpack(entry))
end
return answers
