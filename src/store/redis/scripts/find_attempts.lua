-- Finds entries of the record of attempts, in one step through a part of it.
--
-- KEYS[1] attempts  zset  see attempts.lua
--
-- ARGV[1] up to this moment (ms), ARGV[2] from this moment on (ms), ARGV[3] how many entries are skipped, ARGV[4] how
-- many are looked at, ARGV[5] 1: the oldest first, 0: the newest first, ARGV[6] a text that they hold, after the number
-- of bytes before them
--
-- Returns how many were looked at, then time (ms) and member of each that holds the text.
local members
if ARGV[5] == '1' then
  members = redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[2], ARGV[1], 'WITHSCORES', 'LIMIT', ARGV[3], ARGV[4])
else
  members = redis.call('ZREVRANGEBYSCORE', KEYS[1], ARGV[1], ARGV[2], 'WITHSCORES', 'LIMIT', ARGV[3], ARGV[4])
end
local found = { string.format('%.0f', #members / 2) }
for i = 1, #members, 2 do
  if ARGV[6] == '' or string.find(members[i], ARGV[6], 18, true) then
    found[#found + 1] = members[i + 1]
    found[#found + 1] = members[i]
  end
end
return found
