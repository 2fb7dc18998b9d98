-- Applies changes to units of one partition, each in full or not at all.
--
-- A change holds for the unit as it was read: if its key or its facts are different now, or it is
-- to be taken out of the index and is not in there, nothing of it is applied. Removing it from the
-- index is the lock: of several callers exactly one removes it.
--
-- KEYS[1] deadlines  zset  <kind>:<unit> -> next look (ms)
-- KEYS[2] records    zset  record id -> detected at (ms)
-- KEYS[3] open       zset  record id -> detected at (ms), open records only
-- KEYS[4] archive    hash  record id -> record (JSON)
-- KEYS[5] closed     zset  record id -> closed at (ms)
-- KEYS[6] outbox     stream
-- then for each change i:
-- KEYS[5+2i] alive   string, KEYS[6+2i] facts  hash
--
-- ARGV, 11 for each change:
--  1 <kind>:<unit>
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
local answers = {}
for i = 1, (#KEYS - 6) / 2 do
  local alive, facts = KEYS[5 + 2 * i], KEYS[6 + 2 * i]
  local a = (i - 1) * 11
  local unit, look, id = ARGV[a + 1], ARGV[a + 6], ARGV[a + 8]
  local holds = (redis.call('GET', alive) or '') == ARGV[a + 2]
    and (redis.call('HGET', facts, unit) or '') == ARGV[a + 3]
  if holds and look == '-' then
    holds = redis.call('ZREM', KEYS[1], unit) == 1
  end
  if holds then
    if ARGV[a + 4] == '-' then
      redis.call('DEL', alive)
    elseif ARGV[a + 4] ~= '' then
      redis.call('SET', alive, ARGV[a + 4], 'PX', ARGV[a + 5])
    end
    if look ~= '-' and look ~= '' then
      redis.call('ZADD', KEYS[1], look, unit)
    end
    if ARGV[a + 7] == '' then
      redis.call('HDEL', facts, unit)
    else
      redis.call('HSET', facts, unit, ARGV[a + 7])
    end
    if id ~= '' then
      redis.call('HSET', KEYS[4], id, ARGV[a + 11])
      redis.call('ZADD', KEYS[2], ARGV[a + 9], id)
      if ARGV[a + 10] == '' then
        redis.call('ZADD', KEYS[3], ARGV[a + 9], id)
        redis.call('ZREM', KEYS[5], id)
      else
        redis.call('ZREM', KEYS[3], id)
        redis.call('ZADD', KEYS[5], ARGV[a + 10], id)
      end
      redis.call('XADD', KEYS[6], '*', 'record', ARGV[a + 11])
    end
  end
  answers[i] = holds and 1 or 0
end
return answers
