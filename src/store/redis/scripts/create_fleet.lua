-- Creates the fleet if there is none, and answers its stored fields.
--
-- KEYS[1] meta  hash  fleet -> its id, partitions -> their number, tags -> the form of hash tags if it is not
--                     plain, key -> the key that signs canaries if it is not the id
--
-- ARGV[1] id of a new fleet
-- ARGV[2] number of partitions of a new fleet
-- ARGV[3] form of the hash tags of a new fleet, "" if it is plain
-- ARGV[4] key that signs the canaries of a new fleet, "" if it is the id
--
-- Returns {id, number of partitions, key, form of the hash tags}; the last two are nil where they are not stored.
--
-- The tags are written in the step that creates the fleet: a fleet without the field has plain tags for ever.
if redis.call('HSETNX', KEYS[1], 'fleet', ARGV[1]) == 1 then
  for n, name in ipairs({ 'tags', 'key' }) do
    if ARGV[2 + n] ~= '' then
      redis.call('HSETNX', KEYS[1], name, ARGV[2 + n])
    end
  end
end
redis.call('HSETNX', KEYS[1], 'partitions', ARGV[2])
return redis.call('HMGET', KEYS[1], 'fleet', 'partitions', 'key', 'tags')
