-- Removes the values of a unit that is unknown or was removed.
--
-- KEYS[1]   facts  hash  page of the unit
-- KEYS[1+i] data   hash  <kind>:<unit> -> "<at, ms> <value>", page of the unit, of metric i
--
-- ARGV[1] <kind>:<unit>
--
-- Returns the number of values that were removed.
local facts = redis.call('HGET', KEYS[1], ARGV[1])
if facts and string.sub(facts, 1, 1) ~= 'r' then
  return 0
end
local removed = 0
for i = 2, #KEYS do
  removed = removed + redis.call('HDEL', KEYS[i], ARGV[1])
end
return removed
