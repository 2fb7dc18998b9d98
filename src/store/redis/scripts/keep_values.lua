-- Writes values of units of one partition, and keeps the newest value of each metric and unit.
--
-- Values of an unknown or removed unit are dropped: the values of a removed unit were removed with it, and a late
-- value must not come back.
--
-- KEYS[1]    data   set  the names of all metrics with values in this partition
-- KEYS[2i]   facts  hash  page of the unit of value i
-- KEYS[2i+1] data   hash  <kind>:<unit> -> "<at, ms> <value>", page of that unit, of the metric
--
-- ARGV for each value: metric, <kind>:<unit>, at (ms), value; the values of one unit are adjacent
--
-- Returns for each value 1 if its unit is known, else 0.
local answers, metrics, noted = {}, {}, {}
local unit, known
for i = 1, #ARGV / 4 do
  local metric, name, at, value = ARGV[4 * i - 3], ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i]
  if name ~= unit then
    local facts = redis.call('HGET', KEYS[2 * i], name)
    unit, known = name, facts and string.sub(facts, 1, 1) ~= 'r'
  end
  if known then
    local before = redis.call('HGET', KEYS[2 * i + 1], name)
    local written = before and tonumber(string.match(before, '^%-?%d+'))
    if not written or written <= tonumber(at) then
      redis.call('HSET', KEYS[2 * i + 1], name, at .. ' ' .. value)
    end
    if not noted[metric] then
      noted[metric] = true
      metrics[#metrics + 1] = metric
    end
  end
  answers[i] = known and 1 or 0
end
if #metrics > 0 then
  redis.call('SADD', KEYS[1], unpack(metrics))
end
return answers
