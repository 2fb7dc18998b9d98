-- The first part of join.lua and seal.lua: what both do with news that is told now. It is collected
-- for all groups and then written with one command for each key: a command costs more than what it
-- does.
--
-- The id is a digest of the group and of what is told of whom, so that the same news has the same
-- id even if what was sealed here is lost and sealed again.
--
-- KEYS up to the lanes of the last receiver are those of join.lua and seal.lua; no ARGV is read here.
-- Returns nothing: it declares functions for what follows.
local told = { groups = {}, ids = {}, bodies = {}, owed = {}, over = {}, members = {}, sealed = {} }

-- The names of the receivers, which the keys of their queues end with.
local names = {}

local function note_names(receivers)
  -- What is of a wrong type fails here, before anything is written: a script is not undone.
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

-- Notes that a member was told with this letter, and to whom. Returns what the id of the notification is made of.
local function note(name, member, letter, detected, now)
  local members, over = told.members, told.over
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

-- For each return of a notification the receivers that were told its silence (JSON). `told_to` has ":" and
-- their names for each, "" if that is not known. Nothing if all receivers were told all.
local function told_json(told_to)
  local texts, differs = {}, false
  for i, one in ipairs(told_to) do
    texts[i] = one == '' and 'null' or '"' .. string.sub(one, 2) .. '"'
    local listed = ',' .. string.sub(one, 2) .. ','
    for _, name in ipairs(names) do
      differs = differs or (one ~= '' and not string.find(listed, ',' .. name .. ',', 1, true))
    end
  end
  return differs and ',"told":[' .. table.concat(texts, ',') .. ']' or ''
end

-- Fixes what a notification says: records and intervals, each list (JSON) without its brackets.
-- `group_json` speaks of the group, `digest` is made of what was noted.
-- Without receivers nothing is kept: nothing would ever remove it.
local function tell(group, group_json, digest, offline, online, blind, told_to, now, now_text, receivers)
  if receivers == 0 then
    return
  end
  local index = #told.ids + 1
  local id = 'ntf_' .. string.sub(redis.sha1hex(group .. '\n' .. digest), 1, 24)
  told.groups[index], told.ids[index] = group, id
  told.sealed[2 * index - 1], told.sealed[2 * index] = group, now
  told.bodies[2 * index - 1] = id
  told.bodies[2 * index] = '{"group":' .. group_json .. ',"sealed_at":"' .. now_text .. '","offline":[' .. offline
    .. '],"online":[' .. online .. '],"blind":[' .. blind .. ']' .. told_json(told_to) .. '}'
  if receivers > 1 then
    told.owed[2 * index - 1], told.owed[2 * index] = id, receivers
  end
end

-- Writes what was collected: notifications, and each at the end of its group's lane for each
-- receiver. A group with something in its lane is in the queue, too, if only in a list of groups.
-- No group is told twice in one step.
local function write_told(now, receivers)
  if #told.members > 0 then
    redis.call('HSET', KEYS[3], unpack(told.members))
  end
  if #told.over > 0 then
    redis.call('ZADD', KEYS[2], unpack(told.over))
  end
  if #told.ids == 0 then
    return
  end
  redis.call('HSET', KEYS[4], unpack(told.sealed))
  redis.call('HSET', KEYS[6], unpack(told.bodies))
  if receivers > 1 then
    redis.call('HSET', KEYS[7], unpack(told.owed))
  end
  for r = 1, receivers do
    local before = redis.call('HMGET', KEYS[7 + receivers + r], unpack(told.groups))
    local lanes, queued = {}, {}
    for index, group in ipairs(told.groups) do
      local ids, body = string.match(before[index] or '0', '^([^\n]*)(.*)$')
      lanes[2 * index - 1], lanes[2 * index] = group, ids .. ' ' .. told.ids[index] .. body
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

