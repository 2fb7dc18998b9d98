-- Forgets members of groups that have been over for long, and groups that have no members left.
--
-- KEYS[1] over  zset  "<group>\n<member>" -> since when it is over (ms)
-- then for each: the hash of its group
--
-- ARGV for each: "<group>\n<member>", member
--
-- Returns nothing.
for i = 1, #ARGV / 2 do
  local hash, entry, member = KEYS[1 + i], ARGV[2 * i - 1], ARGV[2 * i]
  if string.sub(redis.call('HGET', hash, member) or '', 1, 1) == 'x' then
    redis.call('HDEL', hash, member)
  end
  redis.call('ZREM', KEYS[1], entry)
  if redis.call('HLEN', hash) <= redis.call('HEXISTS', hash, '_group') + redis.call('HEXISTS', hash, '_sealed') then
    redis.call('DEL', hash)
  end
end
