-- A page of an index, by number and name: the members of a sorted set after a position, at which there need not be a
-- member.
--
-- KEYS[1] the index  zset  name -> number
--
-- ARGV[1] the number of the position, ARGV[2] its name, or "" for the begin of that number, ARGV[3] the last number,
-- ARGV[4] the most members
--
-- Returns names and numbers, a flat list.

-- Lua compares texts by the locale of the server; members with one number are sorted by their bytes.
local function is_at_or_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a <= #b
end

local rank = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[1])
if ARGV[2] ~= '' then
  local low, high = rank, rank + redis.call('ZCOUNT', KEYS[1], ARGV[1], ARGV[1])
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_at_or_before(redis.call('ZRANGE', KEYS[1], middle, middle)[1], ARGV[2]) then
      low = middle + 1
    else
      high = middle
    end
  end
  rank = low
end
local found = redis.call('ZRANGE', KEYS[1], rank, rank + tonumber(ARGV[4]) - 1, 'WITHSCORES')
for at = 2, #found, 2 do
  if tonumber(found[at]) > tonumber(ARGV[3]) then
    return { unpack(found, 1, at - 2) }
  end
end
return found
