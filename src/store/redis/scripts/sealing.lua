-- The first part of join.lua and seal.lua: it seals notifications. They are collected for all groups and then written
-- with one command for each key, because a command costs more than its work.
--
-- The id of a notification is a digest of its group and its members, so the same members have the same id also if a
-- sealed notification is lost and sealed again.
--
-- KEYS up to the lanes of the last receiver are those of join.lua and seal.lua; no ARGV is read here.
-- Returns nothing: it declares functions for the second part.
local batch = { groups = {}, ids = {}, bodies = {}, owed = {}, over = {}, members = {}, sealed = {} }

-- The names of the receivers: the ends of the keys of their queues.
local names = {}

local function begin_batch(receivers)
  -- These commands fail if a key is of a wrong type, before any write: Redis does not undo a script.
  for i = 1, #KEYS do
    if i >= 3 and i <= 7 or i > 7 + receivers and i <= 7 + 2 * receivers then
      redis.call('HLEN', KEYS[i])
    else
      redis.call('ZCARD', KEYS[i])
    end
  end
  for r = 1, receivers do
    names[r] = string.match(KEYS[7 + r], '([^:]*)$')
  end
end

-- Adds a member with this letter to the batch. Returns its part of the digest.
local function add_member(name, member, letter, detected, now)
  local members, over = batch.members, batch.over
  members[#members + 1] = name
  if letter == 'o' then
    members[#members + 1] = 't' .. detected .. ':' .. table.concat(names, ',')
  else
    members[#members + 1] = 'x' .. detected
    over[#over + 1] = now
    over[#over + 1] = name
  end
  return letter .. member
end

-- For each return of a notification, the receivers that were notified of its silence (JSON). `notified` has ":" and
-- their names for each, "" if they are not known. Empty if all receivers were notified of all silences.
local function notified_json(notified)
  local texts, differs = {}, false
  for i, one in ipairs(notified) do
    texts[i] = one == '' and 'null' or '"' .. string.sub(one, 2) .. '"'
    local listed = ',' .. string.sub(one, 2) .. ','
    for _, name in ipairs(names) do
      differs = differs or (one ~= '' and not string.find(listed, ',' .. name .. ',', 1, true))
    end
  end
  return differs and ',"told":[' .. table.concat(texts, ',') .. ']' or ''
end

-- Adds a notification to the batch. `offline`, `online` and `blind` are lists (JSON) without brackets; `digest` has
-- the parts of all members. Without receivers nothing is stored, because no receiver would remove it.
local function add_notification(group, group_json, digest, offline, online, blind, notified, now, now_text, receivers)
  if receivers == 0 then
    return
  end
  local index = #batch.ids + 1
  local id = 'ntf_' .. string.sub(redis.sha1hex(group .. '\n' .. digest), 1, 24)
  batch.groups[index], batch.ids[index] = group, id
  batch.sealed[2 * index - 1], batch.sealed[2 * index] = group, now
  batch.bodies[2 * index - 1] = id
  batch.bodies[2 * index] = '{"group":' .. group_json .. ',"sealed_at":"' .. now_text .. '","offline":[' .. offline
    .. '],"online":[' .. online .. '],"blind":[' .. blind .. ']' .. notified_json(notified) .. '}'
  if receivers > 1 then
    batch.owed[2 * index - 1], batch.owed[2 * index] = id, receivers
  end
end

-- Writes the batch: the notifications, and their ids at the end of the group's lane for each receiver. A group with a
-- lane is in the queue, too, by itself or in a list of groups. A batch has at most one notification of a group.
local function write_batch(now, receivers)
  if #batch.members > 0 then
    redis.call('HSET', KEYS[3], unpack(batch.members))
  end
  if #batch.over > 0 then
    redis.call('ZADD', KEYS[2], unpack(batch.over))
  end
  if #batch.ids == 0 then
    return
  end
  redis.call('HSET', KEYS[4], unpack(batch.sealed))
  redis.call('HSET', KEYS[6], unpack(batch.bodies))
  if receivers > 1 then
    redis.call('HSET', KEYS[7], unpack(batch.owed))
  end
  for r = 1, receivers do
    local before = redis.call('HMGET', KEYS[7 + receivers + r], unpack(batch.groups))
    local lanes, queued = {}, {}
    for index, group in ipairs(batch.groups) do
      local ids, body = string.match(before[index] or '0', '^([^\n]*)(.*)$')
      lanes[2 * index - 1], lanes[2 * index] = group, ids .. ' ' .. batch.ids[index] .. body
      if not before[index] then
        queued[#queued + 1] = now
        queued[#queued + 1] = group
      end
    end
    redis.call('HSET', KEYS[7 + receivers + r], unpack(lanes))
    if #queued > 0 then
      redis.call('ZADD', KEYS[7 + r], 'NX', unpack(queued))
    end
  end
end

