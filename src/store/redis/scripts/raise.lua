-- Sets a key to a moment, unless it holds a later one.
-- KEYS: the key. ARGV: the moment (ms), and XX if the key must be there. Returns 1 if it was set, else 0.
local before = tonumber(redis.call('GET', KEYS[1]) or '')
if before and before >= tonumber(ARGV[1]) or not before and ARGV[2] == 'XX' then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1
