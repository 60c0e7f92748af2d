-- A part of kind redis: a Redis group of the stream, whose pending entries are what is in flight.
-- Needs   stream, group, bits, log_end; shared/entry_ids
-- Leaves  id_of(offset), offset_of(id): nil if it is none; read_group(), which returns the first offset that the group has
--         not delivered, its pending entries, how many it has read and has yet to (false: unknown), or nil without such a
--         group; create_group(start); first_pending(to, from), the offset of the first pending entry, at most `to`, at
--         least `from` (nil: any); header_of(first, lock_ms, begun_ms), the header of such a part; begin_locks_again();
--         each_of(ids, call) calls `call` with as many ids at once as Lua can pass; claim(owner, ids, options of XCLAIM)
--         gives entries to an owner, and returns the existing ones: Redis drops ids without an entry
local function id_of(offset)
  return id_of_end(offset + 1)
end

local function offset_of(id)
  local end_offset = end_of_id(id)
  return end_offset and end_offset - 1
end

-- An id after the last offset of its millisecond is before the first of the next one; with dense ids it is the one of an
-- entry that will be moved to the end of the log.
local function position_of(id)
  local after = bits > 0 and (tonumber(string.match(id, '^%d+')) + 1) * 2 ^ bits or log_end
  return offset_of(id) or math.min(after, offsets_end)
end

local function read_group()
  if redis.call('EXISTS', stream) == 0 then
    return nil
  end
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local named = {}
    for at = 1, #info, 2 do
      named[info[at]] = info[at + 1]
    end
    if named.name == group then
      local last = named['last-delivered-id']
      local undelivered = last == '0-0' and 0 or position_of(last) + (offset_of(last) and 1 or 0)
      return undelivered, named.pending, named['entries-read'], named.lag
    end
  end
end

local function create_group(start)
  redis.call('XGROUP', 'CREATE', stream, group, start > 0 and id_of(start - 1) or '0-0', 'MKSTREAM')
end

local function header_of(first, lock_ms, begun_ms)
  return string.format('redis %d %d %d', first, lock_ms, begun_ms)
end

local function first_pending(to, from)
  local row = redis.call('XPENDING', stream, group, from and id_of(from) or '-', '+', 1)[1]
  return math.min(row and position_of(row[1]) or to, to)
end

local function each_of(ids, call)
  for at = 1, #ids, 1000 do
    call(unpack(ids, at, math.min(at + 999, #ids)))
  end
end

local function claim(owner, ids, ...)
  local options, found = {...}, {}
  each_of(ids, function(...)
    local args = {...}
    args[#args + 1] = 'JUSTID'
    for _, option in ipairs(options) do
      args[#args + 1] = option
    end
    for _, id in ipairs(redis.call('XCLAIM', stream, group, owner, 0, unpack(args))) do
      found[#found + 1] = id
    end
  end)
  return found
end

-- Each pending entry has been its consumer's since now.
local function begin_locks_again()
  local from = '-'
  for _ = 1, 20 do
    local by_owner, rows = {}, redis.call('XPENDING', stream, group, from, '+', 1000)
    for _, row in ipairs(rows) do
      if row[2] ~= 'korvet.released' then
        by_owner[row[2]] = by_owner[row[2]] or {}
        table.insert(by_owner[row[2]], row[1])
      end
      from = '(' .. row[1]
    end
    for owner, ids in pairs(by_owner) do
      claim(owner, ids, 'IDLE', 0)
    end
    if #rows < 1000 then
      break
    end
  end
end
