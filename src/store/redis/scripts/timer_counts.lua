-- The first part of scripts that change how many timers wait.
--
-- KEYS: the hash of the counts is named by its caller. No ARGV is read here.
-- Returns nothing: it declares a function. The counts are read before any write, and written with one command.
local function counts_of(key)
  local changes, counts = {}, {}
  redis.call('HLEN', key)
  function counts.add(of, change)
    if of then
      changes[of] = (changes[of] or 0) + change
    end
  end
  function counts.write()
    local types, write = {}, {}
    for of, change in pairs(changes) do
      if change ~= 0 then
        types[#types + 1] = of
      end
    end
    if #types == 0 then
      return
    end
    local before = redis.call('HMGET', key, unpack(types))
    for i, of in ipairs(types) do
      write[2 * i - 1] = of
      write[2 * i] = string.format('%.0f', math.max(0, (tonumber(before[i] or 0) or 0) + changes[of]))
    end
    redis.call('HSET', key, unpack(write))
  end
  return counts
end

