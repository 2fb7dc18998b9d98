-- Answers the stored groups of records, and stores the groups of each record that has none. All events of a record
-- join the groups of its first event.
--
-- KEYS[1] group_of  hash  member -> group (JSON), or list of groups
--
-- ARGV[1] number of members N, then N members, each once, then for each the groups (JSON) to store if there are none
--
-- Returns for each member its stored groups (JSON), "" if they are the groups of the caller.
local count = tonumber(ARGV[1])
local answers = redis.call('HMGET', KEYS[1], unpack(ARGV, 2, 1 + count))
local fresh = {}
for i = 1, count do
  local own = ARGV[1 + count + i]
  if not answers[i] then
    fresh[#fresh + 1] = ARGV[1 + i]
    fresh[#fresh + 1] = own
  end
  if not answers[i] or answers[i] == own then
    answers[i] = ''
  end
end
if #fresh > 0 then
  redis.call('HSET', KEYS[1], unpack(fresh))
end
return answers
