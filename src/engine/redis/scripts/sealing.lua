-- The first part of join.lua and seal.lua: what both do with news that is told now. It is collected
-- for all groups and then written with one command for each key: a command costs more than what it
-- does.
--
-- The id is a digest of the group and of what is told of whom, so that the same news has the same
-- id even if what was sealed here is lost and sealed again.
--
-- KEYS up to the lanes of the last receiver are those of join.lua and seal.lua; no ARGV is read here.
-- Returns nothing: it declares two functions for what follows.
local told = { groups = {}, ids = {}, bodies = {}, owed = {}, over = {}, members = {}, sealed = {}, for_caller = {} }

-- Fixes what a notification says. `group_json` speaks of the group, `news` is a list of {member,
-- letter, record or interval, when it was detected}. Returns its place in what is told, if anybody is.
local function tell(group, group_json, news, now, now_text, receivers)
  table.sort(news, function(a, b) return a[1] < b[1] end)
  local offline, online, blind, digest, over, members = {}, {}, {}, { group }, told.over, told.members
  for _, one in ipairs(news) do
    local member, letter, body = one[1], one[2], one[3]
    local list = letter == 'o' and offline or online
    if string.sub(member, 1, 6) == 'blind ' then
      list, letter = blind, 'b'
    end
    list[#list + 1] = body
    digest[#digest + 1] = letter .. member
    local name = group .. '\n' .. member
    members[#members + 1] = name
    if letter == 'o' then
      members[#members + 1] = 't' .. one[4]
    else
      members[#members + 1] = 'x' .. one[4]
      over[#over + 1] = now
      over[#over + 1] = name
    end
  end
  -- With nobody to tell there is nothing to keep: nobody would ever take it away.
  if receivers == 0 then
    return
  end
  local place = #told.ids + 1
  local id = 'ntf_' .. string.sub(redis.sha1hex(table.concat(digest, '\n')), 1, 24)
  told.groups[place], told.ids[place] = group, id
  told.sealed[2 * place - 1], told.sealed[2 * place] = group, now
  told.bodies[2 * place - 1] = id
  told.bodies[2 * place] = '{"group":' .. group_json .. ',"sealed_at":"' .. now_text
    .. '","offline":[' .. table.concat(offline, ',')
    .. '],"online":[' .. table.concat(online, ',')
    .. '],"blind":[' .. table.concat(blind, ',') .. ']}'
  if receivers > 1 then
    told.owed[2 * place - 1], told.owed[2 * place] = id, receivers
  end
  return place
end

-- Writes what was collected: notifications, and each at the end of its group's lane for each
-- receiver. No group is told twice in one step. Those of `told.for_caller` that are first in their
-- lane are under way with that: the caller has them, and nobody else is handed them before `until`.
--
-- Returns these, in a flat list: number of the receiver, what `told.for_caller` says, id.
local function write_told(now, receivers, until_then)
  if #told.members > 0 then
    redis.call('HSET', KEYS[3], unpack(told.members))
  end
  if #told.over > 0 then
    redis.call('ZADD', KEYS[2], unpack(told.over))
  end
  if #told.ids == 0 then
    return {}
  end
  redis.call('HSET', KEYS[4], unpack(told.sealed))
  redis.call('HSET', KEYS[6], unpack(told.bodies))
  if receivers > 1 then
    redis.call('HSET', KEYS[7], unpack(told.owed))
  end
  local under_way = {}
  for r = 1, receivers do
    local before = redis.call('HMGET', KEYS[7 + receivers + r], unpack(told.groups))
    local lanes, queued, leased = {}, {}, {}
    for place, group in ipairs(told.groups) do
      local id, caller = told.ids[place], told.for_caller[place]
      local list, at, begun = queued, now, '0'
      if caller and not before[place] then
        list, at, begun = leased, until_then, '1'
        under_way[#under_way + 1] = r
        under_way[#under_way + 1] = caller
        under_way[#under_way + 1] = id
      end
      list[#list + 1] = at
      list[#list + 1] = group
      lanes[2 * place - 1], lanes[2 * place] = group, (before[place] or begun) .. ' ' .. id
    end
    redis.call('HSET', KEYS[7 + receivers + r], unpack(lanes))
    if #queued > 0 then
      redis.call('ZADD', KEYS[7 + r], 'NX', unpack(queued))
    end
    if #leased > 0 then
      redis.call('ZADD', KEYS[7 + r], unpack(leased))
    end
  end
  return under_way
end

