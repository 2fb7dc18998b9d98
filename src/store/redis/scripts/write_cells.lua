-- The first part of scripts that write change-sets of one shape, each if all that it expects is so. No two of them touch
-- one cell or entry, but for cells to which they only add.
--
-- A shape has columns: what they do, with which key, and how many names in a row each change-set has there.
--
-- KEYS behind `before`: for each column its hash or zset; of a table on pages the page of each name
--
-- ARGV from `a` on: how many change-sets there are, and how many columns; for each column what it is, with `@` behind it
--       for a table on pages, and how many names of it a change-set has; then for each column the first name of every
--       change-set, the second of every one, and so on, and behind all names their values or scores, where the column
--       has them:
--       has     the hash has these fields with these values
--       lacks   the hash has none of these fields
--       is_at   the zset has these members with these scores
--       is_off  the zset has none of these members
--       put     writes fields with values
--       remove  removes fields
--       add     adds to the numbers in fields
--       enter   writes members with scores; enter_new only those that are not there
--       leave   removes members
--
-- Returns nothing: it declares a function that answers for each change-set 1 if it is written, else 0.
local WIDTH = { has = 2, lacks = 1, is_at = 2, is_off = 1, put = 2, remove = 1, add = 2, enter = 2, enter_new = 2, leave = 1 }
-- How many words a command gets at once, because the stack of a script ends: an even number, for pairs.
local MOST = 2000

local function write_cells(before, a)
  local count, columns, written, sums, read_pages = tonumber(ARGV[a]), {}, {}, {}, {}
  for n = 1, count do
    written[n] = 1
  end
  local from, key = a + 2 + 2 * tonumber(ARGV[a + 1]), before + 1
  for c = 1, tonumber(ARGV[a + 1]) do
    local what, paged = string.match(ARGV[a + 2 * c], '^([^@]*)(@?)$')
    local names = count * tonumber(ARGV[a + 2 * c + 1])
    columns[c] = { key = KEYS[key], what = what, names = names, from = from, values = from + names }
    columns[c].pages = paged ~= '' and key or nil
    from, key = from + WIDTH[what] * names, key + (paged ~= '' and names or 1)
  end

  -- Calls `see` for each name of a column with what is stored, the number of the name and of its change-set.
  local function each(command, column, see)
    for first = 0, column.names - 1, MOST do
      local last = math.min(first + MOST, column.names) - 1
      for at, now in ipairs(command(column, first, last)) do
        see(now, first + at - 1, (first + at - 1) % count + 1)
      end
    end
  end
  local function fields(column, first, last)
    if not column.pages then
      return redis.call('HMGET', column.key, unpack(ARGV, column.from + first, column.from + last))
    end
    local found = {}
    for at = first, last do
      local page = KEYS[column.pages + at]
      found[#found + 1], read_pages[page] = redis.call('HGET', page, ARGV[column.from + at]), true
    end
    return found
  end
  local function scores(column, first, last)
    return redis.call('ZMSCORE', column.key, unpack(ARGV, column.from + first, column.from + last))
  end
  local function try_hash(column)
    for at = 0, column.pages and column.names - 1 or 0 do
      local key = column.pages and KEYS[column.pages + at] or column.key
      if not read_pages[key] then
        redis.call('HLEN', key)
      end
    end
  end
  local function try_zset(column) redis.call('ZCARD', column.key) end
  -- A key of a wrong type fails here, before any write: Redis does not undo a script.
  local read = {
    has = function(column)
      each(fields, column, function(now, at, n)
        if now ~= ARGV[column.values + at] then written[n] = 0 end
      end)
    end,
    lacks = function(column)
      each(fields, column, function(now, _, n)
        if now then written[n] = 0 end
      end)
    end,
    is_at = function(column)
      each(scores, column, function(now, at, n)
        if not now or tonumber(now) ~= tonumber(ARGV[column.values + at]) then written[n] = 0 end
      end)
    end,
    is_off = function(column)
      each(scores, column, function(now, _, n)
        if now then written[n] = 0 end
      end)
    end,
    add = function(column)
      each(fields, column, function(now, at)
        local key = column.pages and KEYS[column.pages + at] or column.key
        sums[key] = sums[key] or {}
        sums[key][ARGV[column.from + at]] = tonumber(string.match(now or '', '^%-?%d+$')) or 0
      end)
    end,
    put = try_hash, remove = try_hash,
    enter = try_zset, enter_new = try_zset, leave = try_zset,
  }
  for _, column in ipairs(columns) do
    read[column.what](column)
  end

  local function all(command, key, words)
    for first = 1, #words, MOST do
      command(key, unpack(words, first, math.min(first + MOST - 1, #words)))
    end
  end
  local function put(key, ...) redis.call('HSET', key, ...) end
  local function remove(key, ...) redis.call('HDEL', key, ...) end
  local write = {
    put = function(key, words) all(put, key, words) end,
    remove = function(key, words) all(remove, key, words) end,
    enter = function(key, words) all(function(of, ...) redis.call('ZADD', of, ...) end, key, words) end,
    enter_new = function(key, words) all(function(of, ...) redis.call('ZADD', of, 'NX', ...) end, key, words) end,
    leave = function(key, words) all(function(of, ...) redis.call('ZREM', of, ...) end, key, words) end,
    add = function(key, words)
      local now, changed, after, over = sums[key], {}, {}, {}
      for word = 1, #words, 2 do
        local name = words[word]
        now[name], changed[name] = now[name] + tonumber(words[word + 1]), true
      end
      for name in pairs(changed) do
        if now[name] == 0 then
          over[#over + 1] = name
        else
          after[#after + 1] = name
          after[#after + 1] = string.format('%.0f', now[name])
        end
      end
      all(put, key, after)
      all(remove, key, over)
    end,
  }
  for _, column in ipairs(columns) do
    local what, words = column.what, {}
    for at = 0, write[what] and column.names - 1 or -1 do
      if written[at % count + 1] == 1 then
        local name, value = ARGV[column.from + at], ARGV[column.values + at]
        if what == 'enter' or what == 'enter_new' then
          words[#words + 1] = value
        end
        words[#words + 1] = name
        if what == 'put' or what == 'add' then
          words[#words + 1] = value
        end
        if column.pages then
          write[what](KEYS[column.pages + at], words)
          words = {}
        end
      end
    end
    if #words > 0 then
      write[what](column.key, words)
    end
  end
  return written
end
