-- Raises the watermark of a partition, unless it holds a later moment.
-- KEYS: the watermark. ARGV: the moment (ms), the whole watermark, and XX if a watermark must exist. Returns 1 if it
-- was set, else 0.
local moment = tonumber(string.match(redis.call('GET', KEYS[1]) or '', '^%-?%d+'))
if moment and moment >= tonumber(ARGV[1]) or not moment and ARGV[3] == 'XX' then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
