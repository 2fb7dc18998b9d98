-- Says in which groups the news of records is told: those that the first news of each of them joined.
--
-- KEYS[1] group_of  hash  member -> group (JSON)
--
-- ARGV[1] number of members N, then N members, each once, then for each the group (JSON) that it joins if it
-- has joined none
--
-- Returns for each member its group (JSON), "" if that is the one of the caller.
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
