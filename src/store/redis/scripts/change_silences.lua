-- Changes alert silences, or another state that instances share, if they are those that the change was decided from.
--
-- KEYS[1] silences  hash    id -> alert silence (JSON), version -> another value after each change
-- KEYS[2] audit     stream  the last changes that operators made
--
-- ARGV[1] the version that the change was decided from, "" if there was none
-- ARGV[2] the version after the change
-- ARGV[3] the most entries of the audit
-- ARGV[4] number of alert silences that are written; then for each: id, JSON
-- Then the number of those that are removed, and their ids; the number of entries of the audit, and their texts.
--
-- Returns 1 if the change is written, 0 if the version is another one.
if (redis.call('HGET', KEYS[1], 'version') or '') ~= ARGV[1] then
  return 0
end
local at = 3
local function word()
  at = at + 1
  return ARGV[at]
end
for _ = 1, tonumber(word()) do
  local id = word()
  redis.call('HSET', KEYS[1], id, word())
end
for _ = 1, tonumber(word()) do
  redis.call('HDEL', KEYS[1], word())
end
for _ = 1, tonumber(word()) do
  redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[3], '*', 'entry', word())
end
redis.call('HSET', KEYS[1], 'version', ARGV[2])
return 1
