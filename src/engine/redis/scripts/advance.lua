-- Moves forward how far Rollcall has heard, and writes down what it did not hear.
--
-- KEYS[1] heard   hash    at -> ms, ledger -> another value after each change of the ledger
-- KEYS[2] blind   zset    "<from> <to>" (ms) -> to
-- KEYS[3] outbox  stream
--
-- ARGV[1] up to here everything came all the way (ms)
-- ARGV[2] the gap that makes an interval (ms)
-- ARGV[3] the length from which an interval is told (ms)
-- ARGV[4] intervals that ended before this are of no use to anybody any more (ms)
-- ARGV[5] how far the caller knows that was heard (ms), "" if it does not: where nothing is stored,
--         what was stored is lost, and that is told however short it was
--
-- Returns {from, to} of a blind interval that was written, else an empty list.
local before = tonumber(redis.call('HGET', KEYS[1], 'at'))
local sent = tonumber(ARGV[1])
if before and sent <= before then
  return {}
end
redis.call('HSET', KEYS[1], 'at', ARGV[1])
local is_lost = not before and ARGV[5] ~= ''
if is_lost then
  before = tonumber(ARGV[5])
end
if not before or sent <= before or (not is_lost and sent - before <= tonumber(ARGV[2])) then
  return {}
end
local from = string.format('%.0f', before)
local interval = from .. ' ' .. ARGV[1]
redis.call('ZADD', KEYS[2], ARGV[1], interval)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ARGV[4])
redis.call('HSET', KEYS[1], 'ledger', ARGV[1])
if is_lost or sent - before > tonumber(ARGV[3]) then
  redis.call('XADD', KEYS[3], '*', 'blind', interval)
end
return { from, ARGV[1] }
