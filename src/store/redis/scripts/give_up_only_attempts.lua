-- The outcomes of only attempts that began long ago and have none are unknown from now on.
--
-- KEYS[1] timer_attempts  zset  see begin_only_attempts.lua
-- KEYS[2] past_timers     hash  id of a timer that fired or was cancelled -> see timer_text.rs
--
-- ARGV[1] they began before (ms), then for each attempt its member, its receiver, its moment as it is stored, and the id of
-- its timer
--
-- Returns for each the type of its timer, or "" if its outcome is known by now or the timer is not kept any more.
redis.call('HLEN', KEYS[2])
local answers = {}
for n = 1, (#ARGV - 1) / 4 do
  local a = 4 * n - 2
  local began = redis.call('ZMSCORE', KEYS[1], ARGV[a])[1]
  answers[n] = ''
  if began and tonumber(began) < tonumber(ARGV[1]) then
    redis.call('ZREM', KEYS[1], ARGV[a])
    answers[n] = write_receipt(KEYS[2], ARGV[a + 3], ARGV[a + 2], ARGV[a + 1], 'u') or ''
  end
end
return answers
