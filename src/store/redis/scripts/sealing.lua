-- The first part of join.lua and seal.lua: it seals notifications. They are collected for all groups and then written
-- with one command for each key, because a command costs more than its work.
--
-- The id of a notification is a digest of its group and its members, so the same members have the same id also if a
-- sealed notification is lost and sealed again.
--
-- Waiting members are a sorted set by when their waits began. The moments of members that are final, which are all but
-- silences, are less by `FINAL` and so below zero. The stages of members, STORM and FINAL are those of
-- presence/grouping.rs: `guarded` declares them.
--
-- KEYS up to the lanes of the last receiver are those of join.lua and seal.lua; no ARGV is read here.
-- Returns nothing: it declares functions for the second part.
-- How many values a command gets at once, because the stack of a script ends: an even number, for pairs.
local MAX_VALUES = 2000
local batch = { groups = {}, ids = {}, bodies = {}, owed = {}, over = {}, members = {}, sealed = {}, of_receiver = {} }

-- The values of some fields of a hash.
local function values_of(key, fields)
  local values = {}
  for from = 1, #fields, MAX_VALUES do
    local to = math.min(from + MAX_VALUES - 1, #fields)
    for index, value in ipairs(redis.call('HMGET', key, unpack(fields, from, to))) do
      values[from + index - 1] = value
    end
  end
  return values
end

local function set_fields(key, pairs)
  for from = 1, #pairs, MAX_VALUES do
    redis.call('HSET', key, unpack(pairs, from, math.min(from + MAX_VALUES - 1, #pairs)))
  end
end

local function add_members(key, pairs)
  for from = 1, #pairs, MAX_VALUES do
    redis.call('ZADD', key, unpack(pairs, from, math.min(from + MAX_VALUES - 1, #pairs)))
  end
end

local function remove_members(key, members)
  for from = 1, #members, MAX_VALUES do
    redis.call('ZREM', key, unpack(members, from, math.min(from + MAX_VALUES - 1, #members)))
  end
end

-- How many silences last of which receivers were notified, and when the group was sealed before, for the notification
-- of a group that units share.
local function situation(lasting, gathers, before)
  if not lasting or gathers == 0 then
    return ''
  end
  local since = before and string.format(',"before":%.0f', before) or ''
  return ',"lasting":' .. redis.call('ZCARD', lasting) .. since
end

-- The names of the receivers: the ends of the keys of their queues. The first `own` are those of the group; the others
-- are notified only of the returns of silences that they were notified of.
local names, own_names = {}, ''

local function begin_batch(receivers, own)
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
  own_names = table.concat(names, ',', 1, own)
end

-- A group whose silences were notified is looked at again. Its key is the last one.
local function look_after(looks_after, now, group)
  if looks_after > 0 then
    redis.call('ZADD', KEYS[#KEYS], 'LT', string.format('%.0f', now + looks_after), group)
  end
end

-- Adds a member with this letter to the batch; `body` is kept while its silence lasts, and `others` are notified of it
-- beside the receivers of the group. Returns its part of the digest.
local function add_member(name, member, letter, detected, now, body, others)
  local members, over = batch.members, batch.over
  members[#members + 1] = name
  if letter == WAITS then
    members[#members + 1] = NOTIFIED .. detected .. ':' .. own_names .. (others or '') .. (body and ' ' .. body or '')
  else
    members[#members + 1] = OVER .. detected
    over[#over + 1] = now
    over[#over + 1] = name
  end
  return letter .. member
end

-- The unit in the name of a member.
local function unit_of(member)
  return string.match(member, '^%S+ (.*):%d+')
end

-- Whether receivers were notified of a silence; `notified` is empty if they are not known, or ":" and their names.
local function is_told(notified)
  return notified ~= ':'
end

-- The receivers beside those of the group that were notified of a silence, each behind a comma. `notified` is empty, or
-- ":" and the names of all.
local function others_of(notified, receivers, own)
  local listed, others = ',' .. string.sub(notified, 2) .. ',', ''
  for r = own + 1, receivers do
    if string.find(listed, ',' .. names[r] .. ',', 1, true) then
      others = others .. ',' .. names[r]
    end
  end
  return others
end

-- For each return of a notification, the receivers that were notified of its silence (JSON). `notified` has ":" and
-- their names for each, "" if they are not known. Empty if all receivers were notified of all silences. The second
-- result has the numbers of the receivers that get the notification: those of the group, if it has more than returns
-- (`has_news`), and all that were notified of a silence whose return is in it. The third says whether the group does
-- not have some of them.
local function notified_json(notified, has_news, receivers, own)
  local texts, differs, told, to, has_others = {}, false, {}, {}, false
  for i, one in ipairs(notified) do
    texts[i] = one == '' and 'null' or '"' .. string.sub(one, 2) .. '"'
    local listed = ',' .. string.sub(one, 2) .. ','
    for r = 1, receivers do
      local is_listed = one ~= '' and string.find(listed, ',' .. names[r] .. ',', 1, true)
      differs = differs or (r <= own and one ~= '' and not is_listed)
      told[r] = told[r] or is_listed or (r <= own and one == '')
    end
  end
  for r = 1, receivers do
    if told[r] or (r <= own and has_news) then
      to[#to + 1] = r
      has_others = has_others or r > own
    end
  end
  local field = ',"notified":[' .. table.concat(texts, ',') .. ']'
  if has_others then
    local quoted = own == 0 and '' or '"' .. string.gsub(own_names, ',', '","') .. '"'
    return field .. ',"receivers":[' .. quoted .. ']', to
  end
  return differs and field or '', to
end

-- Adds a notification to the batch. `offline`, `online` and `blind` are lists (JSON) without brackets; `digest` has
-- the parts of all members; `situation` is the result of that function. If no receiver is notified, nothing is stored,
-- because no receiver would remove it, and no interval begins. Returns whether it is added.
local function add_notification(group, group_json, digest, offline, online, blind, notified, situation, now, now_text, receivers, own)
  local notified_text, to = notified_json(notified, offline ~= '' or blind ~= '', receivers, own)
  if #to == 0 then
    return false
  end
  local index = #batch.ids + 1
  local id = 'ntf_' .. string.sub(redis.sha1hex(group .. '\n' .. digest), 1, 24)
  batch.groups[index], batch.ids[index] = group, id
  for _, r in ipairs(to) do
    batch.of_receiver[r] = batch.of_receiver[r] or {}
    table.insert(batch.of_receiver[r], index)
  end
  batch.sealed[2 * index - 1], batch.sealed[2 * index] = group, now
  batch.bodies[2 * index - 1] = id
  batch.bodies[2 * index] = '{"group":' .. group_json .. ',"sealed_at":"' .. now_text .. '","offline":[' .. offline
    .. '],"online":[' .. online .. '],"blind":[' .. blind .. ']' .. notified_text .. situation .. '}'
  if #to > 1 then
    batch.owed[#batch.owed + 1] = id
    batch.owed[#batch.owed + 1] = #to
  end
  return true
end

-- Writes the batch: the notifications, and their ids at the end of the group's lane for each receiver. A group with a
-- lane is in the queue, too. A batch has at most one notification of a group.
local function write_batch(now, receivers)
  set_fields(KEYS[3], batch.members)
  add_members(KEYS[2], batch.over)
  if #batch.ids == 0 then
    return
  end
  redis.call('HSET', KEYS[4], unpack(batch.sealed))
  redis.call('HSET', KEYS[6], unpack(batch.bodies))
  if #batch.owed > 0 then
    redis.call('HSET', KEYS[7], unpack(batch.owed))
  end
  for r = 1, receivers do
    local indices, groups = batch.of_receiver[r] or {}, {}
    for n, index in ipairs(indices) do
      groups[n] = batch.groups[index]
    end
    local before = #groups > 0 and redis.call('HMGET', KEYS[7 + receivers + r], unpack(groups))
    local lanes, queued = {}, {}
    for n, group in ipairs(groups) do
      lanes[2 * n - 1], lanes[2 * n] = group, (before[n] or '0') .. ' ' .. batch.ids[indices[n]]
      -- One that has an entry keeps it.
      queued[2 * n - 1], queued[2 * n] = now, group
    end
    if #lanes > 0 then
      redis.call('HSET', KEYS[7 + receivers + r], unpack(lanes))
    end
    if #queued > 0 then
      redis.call('ZADD', KEYS[7 + r], 'NX', unpack(queued))
    end
  end
end

