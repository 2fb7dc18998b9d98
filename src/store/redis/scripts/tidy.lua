-- Removes members of groups that have been over for long, and the times when such groups were sealed.
--
-- KEYS[1] over     zset  "<group>\n<member>" -> since when it is over (ms)
-- KEYS[2] members  hash  "<group>\n<member>" -> see join.lua
-- KEYS[3] sealed   hash  group -> when it was last sealed (ms)
--
-- ARGV[1] the time before which times of sealing are removed (ms), ARGV[2] number of members N, then N times
-- "<group>\n<member>", then N times the group
--
-- Returns nothing.
local count = tonumber(ARGV[2])
local members = redis.call('HMGET', KEYS[2], unpack(ARGV, 3, 2 + count))
local sealed = redis.call('HMGET', KEYS[3], unpack(ARGV, 3 + count))
for i = 1, count do
  if string.sub(members[i] or '', 1, 1) == OVER then
    redis.call('HDEL', KEYS[2], ARGV[2 + i])
  end
  if sealed[i] and (tonumber(sealed[i]) or 0) < tonumber(ARGV[1]) then
    redis.call('HDEL', KEYS[3], ARGV[2 + count + i])
  end
end
redis.call('ZREM', KEYS[1], unpack(ARGV, 3, 2 + count))
