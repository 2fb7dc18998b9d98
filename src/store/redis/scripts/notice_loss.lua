-- Notices that the server holds another fleet than the one that an instance knew: its data was lost, and the
-- operators are told so once, whichever of the instances notices first.
--
-- KEYS[1] heard   hash    fleet -> id of the fleet, loss_told -> that the loss of the fleet before it was told
-- KEYS[2] blind   zset    "<from> <to>" (ms) -> to
-- KEYS[3] outbox  stream
--
-- ARGV[1] the id that the instance knew
-- ARGV[2] the id of a fleet that begins now
-- ARGV[3] up to when the instance knows that was heard (ms), "" if it does not: then nothing was lost
-- ARGV[4] up to when that is blind time (ms)
--
-- Returns an empty list if the fleet is the one that was known, else {id}, or {id, from, to} where the loss is
-- told with this.
local fleet = redis.call('HGET', KEYS[1], 'fleet')
if fleet == ARGV[1] then
  return {}
end
if not fleet then
  fleet = ARGV[2]
  redis.call('HSET', KEYS[1], 'fleet', fleet)
  redis.call('HDEL', KEYS[1], 'loss_told')
end
-- Once for each fleet that begins, whichever one an instance knew: some may have missed the one in between.
if ARGV[3] == '' or redis.call('HSETNX', KEYS[1], 'loss_told', '1') == 0 then
  return { fleet }
end
local interval = ARGV[3] .. ' ' .. ARGV[4]
redis.call('ZADD', KEYS[2], ARGV[4], interval)
redis.call('HSET', KEYS[1], 'ledger', ARGV[4])
redis.call('XADD', KEYS[3], '*', 'blind', interval)
return { fleet, ARGV[3], ARGV[4] }
