-- Prolongs the waits of silences that still wait as they were read.
--
-- KEYS[1]   members  hash  "<group>\n<member>" -> see join.lua
-- KEYS[1+g] waiting  zset  of group g: member -> when its wait began (ms), see sealing.lua
--
-- ARGV: for each silence the number g of its group, the group, the member, the value and the beginning of the wait (ms)
-- as they were read, and the beginning from now on (ms)
--
-- Returns how many waits are prolonged.
local count = 0
for i = 1, #ARGV, 6 do
  local waiting, group, member, value, since = KEYS[1 + tonumber(ARGV[i])], unpack(ARGV, i + 1, i + 4)
  local stored = redis.call('ZMSCORE', waiting, member)[1]
  if stored and tonumber(stored) == tonumber(since) and redis.call('HGET', KEYS[1], group .. '\n' .. member) == value then
    redis.call('ZADD', waiting, ARGV[i + 5], member)
    count = count + 1
  end
end
return count
