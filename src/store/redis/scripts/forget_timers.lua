-- Forgets timers of one partition that are not kept any more. One that receivers have not got yet is kept.
--
-- KEYS[1] timers_kept   zset  id of a timer that fired or was cancelled -> until when it is kept (ms)
-- KEYS[2] timers_ended  zset  the same -> its moment (ms)
-- KEYS[3] past_timers   hash  the same -> see timer_text.rs
--
-- ARGV[1] now (ms), ARGV[2] when a timer is looked at again that receivers have not got yet (ms), then the ids
--
-- Returns how many were forgotten.
redis.call('ZCARD', KEYS[2])
local kept = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, 3))
local texts = redis.call('HMGET', KEYS[3], unpack(ARGV, 3))
local later, over = {}, {}
for n = 1, #ARGV - 2 do
  if kept[n] and tonumber(kept[n]) <= tonumber(ARGV[1]) then
    if string.sub(texts[n] or '', 1, 1) == 'f' then
      later[#later + 1], later[#later + 2] = ARGV[2], ARGV[2 + n]
    else
      over[#over + 1] = ARGV[2 + n]
    end
  end
end
if #later > 0 then
  redis.call('ZADD', KEYS[1], unpack(later))
end
if #over == 0 then
  return 0
end
redis.call('ZREM', KEYS[1], unpack(over))
redis.call('ZREM', KEYS[2], unpack(over))
return redis.call('HDEL', KEYS[3], unpack(over))
