-- Writes change-sets, each if all that it expects holds. No two of them touch the same cell or entry, except cells to
-- which they only add.
--
-- Change-sets of one partition and one shape are a block. A shape has columns: the operation, its key, and the number
-- of names that each change-set has there in a row.
--
-- KEYS  block after block: for each column its hash or zset; for a paged table the page of each name
--
-- ARGV  block after block: the number of change-sets, and the number of columns; for each column its operation, with
--       `@` behind it for a paged table, and the number of names of a change-set in it; then for each column the first
--       name of every change-set, the second name of every change-set, and so on, with values or scores if the column
--       has them: values that are written stand beside each name, in the order of their command, all others behind the
--       names:
--       has     the hash has these fields with these values
--       lacks   the hash has none of these fields
--       is_at   the zset has these members with these scores
--       is_off  the zset has none of these members
--       put     writes fields with values
--       remove  removes fields
--       add     adds to the numbers in fields; add_word adds to their words, remove_word removes words; never on pages
--       enter   writes members with scores; enter_new only members that are absent
--       leave   removes members
--
-- Returns for each change-set 1 if it is written, else 0.

-- The number of words of a name in a column.
local WIDTH = { has = 2, lacks = 1, is_at = 2, is_off = 1, put = 2, remove = 1, add = 2, add_word = 2, remove_word = 2, enter = 2, enter_new = 2, leave = 1 }
-- The most words of a command, because the stack of a script is limited: an even number, for pairs.
local MOST = 2000

local columns, answers, at, key = {}, {}, 1, 1
while at <= #ARGV do
  local count, block = tonumber(ARGV[at]), { is_all = true }
  local from = at + 2 + 2 * tonumber(ARGV[at + 1])
  for c = at + 2, from - 1, 2 do
    local what, paged = string.match(ARGV[c], '^([^@]*)(@?)$')
    local names = count * tonumber(ARGV[c + 1])
    local pages = paged ~= '' and key or nil
    columns[#columns + 1] = { block = block, count = count, answer = #answers, key = KEYS[key], pages = pages,
      what = what, names = names, from = from }
    from, key = from + WIDTH[what] * names, key + (pages and names or 1)
  end
  for n = #answers + 1, #answers + count do
    answers[n] = 1
  end
  at = from
end

-- The keys that were read. A key of a wrong type fails before any write: Redis does not undo a script.
local known = {}
-- Values that are edited, by key and field.
local edited = {}
local function key_of(column, at)
  return column.pages and KEYS[column.pages + at] or column.key
end
local function is_written(column, at)
  return answers[column.answer + at % column.count + 1] == 1
end
local function try_hash(column)
  for at = 0, column.pages and column.names - 1 or 0 do
    local key = key_of(column, at)
    if not known[key] then
      redis.call('HLEN', key)
      known[key] = true
    end
  end
end
local function try_zset(column)
  if not known[column.key] then
    redis.call('ZCARD', column.key)
    known[column.key] = true
  end
end
-- Reads the stored value of each name of a column. A change-set is not written if `fails` is true for one of its
-- names; `fails` gets the stored value, and the number of the name from 0 on.
local function fields(...) return redis.call('HMGET', ...) end
local function scores(...) return redis.call('ZMSCORE', ...) end
local function each(get, column, fails)
  for first = 0, column.names - 1, column.pages and 1 or MOST do
    local key = key_of(column, first)
    local last = column.pages and first or math.min(first + MOST, column.names) - 1
    known[key] = true
    for n, now in ipairs(get(key, unpack(ARGV, column.from + first, column.from + last))) do
      local at = first + n - 1
      if fails(now, at) then
        answers[column.answer + at % column.count + 1], column.block.is_all = 0, false
      end
    end
  end
end
local function is_there(now) return now end

local read = {
  has = function(column)
    local values = column.from + column.names
    each(fields, column, function(now, at) return now ~= ARGV[values + at] end)
  end,
  lacks = function(column) each(fields, column, is_there) end,
  is_at = function(column)
    local values = column.from + column.names
    each(scores, column, function(now, at)
      return not now or tonumber(now) ~= tonumber(ARGV[values + at])
    end)
  end,
  is_off = function(column) each(scores, column, is_there) end,
  put = try_hash, remove = try_hash,
  enter = try_zset, enter_new = try_zset, leave = try_zset,
}
-- The value of a field after an edit; nil removes the field.
local edit = {
  add = function(now, more)
    local sum = (tonumber(string.match(now or '', '^%-?%d+$')) or 0) + tonumber(more)
    return sum ~= 0 and string.format('%.0f', sum) or nil
  end,
  add_word = function(now, word) return now and now .. ' ' .. word or word end,
  remove_word = function(now, word)
    local others = {}
    for other in string.gmatch(now or '', '[^ ]+') do
      if other ~= word then others[#others + 1] = other end
    end
    return #others > 0 and table.concat(others, ' ') or nil
  end,
}
for what in pairs(edit) do
  read[what] = function(column)
    edited[column.key] = edited[column.key] or {}
    each(fields, column, function(now, at) edited[column.key][ARGV[column.from + at]] = now or nil end)
  end
end
for _, column in ipairs(columns) do
  read[column.what](column)
end

local command = {
  put = function(key, ...) redis.call('HSET', key, ...) end,
  remove = function(key, ...) redis.call('HDEL', key, ...) end,
  enter = function(key, ...) redis.call('ZADD', key, ...) end,
  enter_new = function(key, ...) redis.call('ZADD', key, 'NX', ...) end,
  leave = function(key, ...) redis.call('ZREM', key, ...) end,
}
-- Runs a command with these words of a list.
local function write(what, key, words, from, to)
  for first = from, to, MOST do
    command[what](key, unpack(words, first, math.min(first + MOST - 1, to)))
  end
end
local function edit_column(column)
  local now, names = edited[column.key], {}
  for at = 0, column.names - 1 do
    if is_written(column, at) then
      local name = ARGV[column.from + at]
      now[name] = edit[column.what](now[name], ARGV[column.from + column.names + at])
      names[#names + 1] = name
    end
  end
  local put, remove = {}, {}
  for _, name in ipairs(names) do
    local list = now[name] and put or remove
    list[#list + 1] = name
    list[#list + 1] = now[name]
  end
  write('put', column.key, put, 1, #put)
  write('remove', column.key, remove, 1, #remove)
end
local function write_column(column)
  local what, from, width = column.what, column.from, WIDTH[column.what]
  if edit[what] then
    edit_column(column)
  elseif command[what] and column.pages then
    for at = 0, column.names - 1 do
      if is_written(column, at) then
        write(what, key_of(column, at), ARGV, from + width * at, from + width * at + width - 1)
      end
    end
  elseif command[what] then
    local words, first, last = ARGV, from, from + width * column.names - 1
    if not column.block.is_all then
      words, first, last = {}, 1, 0
      for at = 0, column.names - 1 do
        for word = from + width * at, is_written(column, at) and from + width * at + width - 1 or 0 do
          last = last + 1
          words[last] = ARGV[word]
        end
      end
    end
    write(what, column.key, words, first, last)
  end
end
for _, column in ipairs(columns) do
  write_column(column)
end
return answers
