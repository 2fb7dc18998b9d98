-- Sets the next attempts of deliveries that are under way: to extend leases, or after failed attempts.
--
-- KEYS[1] queue  zset  group, or list of groups -> next attempt (ms)
-- KEYS[2] lanes  hash  group -> see lease.lua
-- then those of write_cells.lua, which puts attempts on record
--
-- ARGV[1] number of deliveries N, then N group keys, then N ids, then N times the number of the attempt, then N next
-- attempts (ms), then those of write_cells.lua, if there are attempts to put on record
--
-- Only the last attempt at the first delivery of a lane is under way: another instance may have ended the delivery,
-- or begun another attempt. A group of a list gets an entry of its own in the queue. Returns for each 1 if its next
-- attempt was set, else 0.
local count = tonumber(ARGV[1])
local lanes = redis.call('HMGET', KEYS[2], unpack(ARGV, 2, 1 + count))
-- This command fails if the key is of a wrong type, before any write: Redis does not undo a script.
redis.call('ZCARD', KEYS[1])
if ARGV[2 + 4 * count] then
  write_cells(2, #KEYS - 2, 2 + 4 * count)
end
local entries, answers = {}, {}
for i = 1, count do
  local attempt, id = string.match(lanes[i] or '', '^(%d+) (%S+)')
  local is_under_way = id == ARGV[1 + count + i] and attempt == ARGV[1 + 2 * count + i]
  answers[i] = is_under_way and 1 or 0
  if is_under_way then
    entries[#entries + 1] = ARGV[1 + 3 * count + i]
    entries[#entries + 1] = ARGV[1 + i]
  end
end
if #entries > 0 then
  redis.call('ZADD', KEYS[1], unpack(entries))
end
return answers
