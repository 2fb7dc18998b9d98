-- The first part of join.lua and seal.lua: what both do with news that is told now. It is collected
-- for all groups and then written with one command for each key: a command costs more than what it
-- does.
--
-- The id is a digest of the group and of what is told of whom, so that the same news has the same
-- id even if what was sealed here is lost and sealed again.
local told = { groups = {}, ids = {}, bodies = {}, owed = {}, over = {} }

-- Fixes what a notification says. `group_json` speaks of the group, `news` is a list of {member,
-- letter, record or interval}; answers fields of the group's hash that change with it.
local function tell(group, group_json, news, now, now_text, receivers)
  table.sort(news, function(a, b) return a[1] < b[1] end)
  local offline, online, blind, digest, fields = {}, {}, {}, { group }, { '_sealed', now }
  for _, one in ipairs(news) do
    local member, letter, body = one[1], one[2], one[3]
    local list = letter == 'o' and offline or online
    if string.sub(member, 1, 6) == 'blind ' then
      list, letter = blind, 'b'
    end
    list[#list + 1] = body
    digest[#digest + 1] = letter .. member
    fields[#fields + 1] = member
    fields[#fields + 1] = (letter == 'o' and 't' or 'x') .. one[4]
    if letter ~= 'o' then
      told.over[#told.over + 1] = now
      told.over[#told.over + 1] = group .. '\n' .. member
    end
  end
  -- With nobody to tell there is nothing to keep: nobody would ever take it away.
  if receivers > 0 then
    local id = 'ntf_' .. string.sub(redis.sha1hex(table.concat(digest, '\n')), 1, 24)
    told.groups[#told.groups + 1] = group
    told.ids[#told.ids + 1] = id
    told.bodies[#told.bodies + 1] = id
    told.bodies[#told.bodies + 1] = '{"group":' .. group_json .. ',"sealed_at":"' .. now_text
      .. '","offline":[' .. table.concat(offline, ',')
      .. '],"online":[' .. table.concat(online, ',')
      .. '],"blind":[' .. table.concat(blind, ',') .. ']}'
    told.owed[#told.owed + 1] = id
    told.owed[#told.owed + 1] = receivers
  end
  return fields
end

-- Writes what was collected: notifications, and each at the end of its group's lane for each
-- receiver. No group is told twice in one step. The keys of receivers come from `first` on: all
-- queues, then all lanes.
local function write_told(over, notifications, owed, first, receivers, now)
  if #told.over > 0 then
    redis.call('ZADD', over, unpack(told.over))
  end
  if #told.ids == 0 then
    return
  end
  redis.call('HSET', notifications, unpack(told.bodies))
  redis.call('HSET', owed, unpack(told.owed))
  local queued = {}
  for _, group in ipairs(told.groups) do
    queued[#queued + 1] = now
    queued[#queued + 1] = group
  end
  for r = 1, receivers do
    local lanes = KEYS[first + receivers + r - 1]
    local before = redis.call('HMGET', lanes, unpack(told.groups))
    local after = {}
    for place, group in ipairs(told.groups) do
      after[#after + 1] = group
      after[#after + 1] = before[place] and before[place] .. ' ' .. told.ids[place] or told.ids[place]
    end
    redis.call('HSET', lanes, unpack(after))
    redis.call('ZADD', KEYS[first + r - 1], 'NX', unpack(queued))
  end
end

