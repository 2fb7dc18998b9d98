-- Forgets timers of one partition that are not kept any more. One that receivers have not got yet is kept.
--
-- KEYS[1] timers_kept   zset  id of a timer that fired or was cancelled -> until when it is kept (ms)
-- KEYS[2] timers_ended  zset  the same -> its moment (ms)
-- KEYS[2+n]             hash  the page of timer n: id -> see timer_text.rs
--
-- ARGV[1] now (ms), ARGV[2] when a timer is looked at again that receivers have not got yet (ms), then the ids
--
-- Returns how many were forgotten.
redis.call('ZCARD', KEYS[2])
local forgotten = 0
for n = 1, #KEYS - 2 do
  local id = ARGV[2 + n]
  local kept = redis.call('ZMSCORE', KEYS[1], id)[1]
  if kept and tonumber(kept) <= tonumber(ARGV[1]) then
    local letter = string.sub(redis.call('HGET', KEYS[2 + n], id) or '', 1, 1)
    if letter == 'f' then
      redis.call('ZADD', KEYS[1], ARGV[2], id)
    else
      redis.call('ZREM', KEYS[1], id)
      redis.call('ZREM', KEYS[2], id)
      -- One that waits was registered again.
      if letter ~= 'w' then
        forgotten = forgotten + redis.call('HDEL', KEYS[2 + n], id)
      end
    end
  end
end
return forgotten
