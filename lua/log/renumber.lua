#!lua flags=allow-oom
-- Takes external entries (XADDs by others) into a partition's log: advances its end over those whose ids are offsets,
-- and moves the others, with all that follow, to free offsets in their order. One bounded step.
-- KEYS     stream, state, moving, index, share
-- ARGV     topic id, leader epoch, offset sequence bits, most entries to look at or move, most bytes of them, channel
-- Returns  {entries that came to a new offset, 1 if another step is needed else 0, high watermark}
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER (a later leader epoch has begun), KAFKA_STORAGE_ERROR (a
--          malformed state, offsets used up, an entry of more fields than a script can pass on)
--
-- A stream takes no entry below its last id, so everything after the first entry without an offset must leave before
-- anything can come back. If that is more than one step may do, the entries wait in `moving`:
--   1. while the stream has entries past `next`: append them to `moving` with their ids, XDEL them;
--   2. when it has none: XSETID back to the last offset, and bring entries back from `moving`, oldest first.
-- The field `moving` of the state closes the log meanwhile: nothing is appended to it, and readers stop at `next`. An external
-- entry that arrives between two steps lands past `next`, where 1. finds it and puts it after all others. Every
-- entry is always in exactly one of the two streams; a crash between two steps leaves work for the next caller.
-- A share group that is a Redis group of the stream gets what it has read past `next` again, for it knows records by their
-- ids, and these are other records' then.
-- What comes into the log is counted there, once: records, bytes, timestamps, and the rows of the index.
-- allow-oom: a log is readable when memory is full, and what is moved leaves as much as it takes.

local stream, state, moving, index, share = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local topic_id, leader_epoch, width = ARGV[1], ARGV[2], 2 ^ tonumber(ARGV[3])
local limit, bytes_left, channel = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]

local offsets_end = 9007199254740992 -- 2^53: the end of exact numbers in Lua
local chunk = 50 -- entries copied into Lua at once
local arguments_max = 7900 -- Lua's stack holds 8000 values, and XADD has some of its own

local held = redis.call('HMGET', state, 'topic', 'next', 'first', 'moving', 'bytes', 'max_timestamp', 'interval', 'records',
  'start', 'lake_start', 'epochs')
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. stream .. ' does not belong to topic id ' .. topic_id)
end
local next_offset, first, is_moving = tonumber(held[2]), tonumber(held[3] or ''), held[4] and true or false
local bytes, largest, interval = tonumber(held[5]), held[6], held[7] or '-1'
local records, start = tonumber(held[8] or '0'), tonumber(held[9])
local lake_start, epochs = tonumber(held[10] or ''), held[11]
if not (next_offset and next_offset >= 0 and next_offset <= offsets_end and bytes and records and start
    and tonumber(largest) and tonumber(interval)) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end
local known_next = next_offset
-- @include shared/leader_epoch
-- @include shared/index_steps
-- @include shared/external_entry

local function id_of(offset)
  local ms = math.floor(offset / width)
  return string.format('%d-%d', ms, offset - ms * width)
end

-- The offset of an id; nil and its milliseconds for an id that is none. Ids may exceed 2^53: compared, never computed.
local function offset_of(id)
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  ms, sequence = tonumber(ms), tonumber(sequence)
  if sequence < width and ms < offsets_end / width then
    return ms * width + sequence, ms
  end
  return nil, ms
end

local function past_next(count)
  local from = next_offset > 0 and '(' .. id_of(next_offset - 1) or '-'
  return redis.call('XRANGE', stream, from, '+', 'COUNT', count)
end

local function later(one, other)
  return tonumber(other) > tonumber(one) and other or one
end

-- The entry with these fields is the log's last record from now on, at `offset`.
local function count_in(offset, fields, from)
  local size, timestamp = measure(fields, math.floor(offset / width), from)
  local records_before, bytes_before = records, bytes
  records, bytes = records + 1, bytes + size
  largest, interval = later(largest, timestamp), later(interval, timestamp)
  first = first or offset
  next_offset = offset + 1
  bytes_left = bytes_left - size
  if math.floor(records / records_per_row) > math.floor(records_before / records_per_row)
      or math.floor(bytes / bytes_per_row) > math.floor(bytes_before / bytes_per_row) then
    if redis.call('EXISTS', index) == 0 then
      -- The first row stands for all before it; if it is not the first one, the others were deleted.
      interval = largest
      if records_before >= records_per_row or bytes_before >= bytes_per_row then
        redis.call('HSET', state, 'reindex', '1')
      end
    end
    -- If the index takes no row, being a key of another type, the keeper rebuilds it.
    local row = string.format('%d:%d:%s:%s', records, bytes, largest, interval)
    if type(redis.pcall('ZADD', index, string.format('%d', next_offset), row)) == 'number' then
      interval = '-1'
    end
  end
end

-- How many to copy into Lua next, if `done` of this step took what is gone of `room`: one at first, then as many as
-- there is room for, of entries like those before.
local function fitting(done, room)
  if done == 0 then
    return 1
  end
  return math.max(1, math.min(chunk, math.ceil(bytes_left * done / math.max(room - bytes_left, 1))))
end

-- Advances `next` over entries with offsets; returns what is left: nothing, more, unreadable.
local function take_in()
  local taken, room = 0, bytes_left
  while true do
    local entries = past_next(fitting(taken, room))
    if #entries == 0 then
      return 'nothing'
    end
    for _, entry in ipairs(entries) do
      local offset = offset_of(entry[1])
      if not offset then
        return 'unreadable'
      end
      if limit == 0 or bytes_left <= 0 then
        return 'more'
      end
      count_in(offset, entry[2], 1)
      limit, taken = limit - 1, taken + 1
    end
  end
end

local function stream_ids()
  if redis.call('EXISTS', stream) == 0 then
    return '0-0', 0, '0-0'
  end
  local info, named = redis.call('XINFO', 'STREAM', stream), {}
  for i = 1, #info, 2 do
    named[info[i]] = info[i + 1]
  end
  return named['last-generated-id'], named['entries-added'], named['max-deleted-entry-id']
end

-- The Redis groups that are parts of share groups, by name (shared/share_begin).
local share_groups = {}
local share_fields = redis.pcall('HKEYS', share)
for _, field in ipairs(share_fields.err and {} or share_fields) do
  if string.find(field, '^h:') and string.find(redis.call('HGET', share, field), '^redis ') then
    share_groups[string.sub(field, 3)] = true
  end
end

-- Has those that are past `next` go on there.
local function set_groups_back()
  if not next(share_groups) or redis.call('EXISTS', stream) == 0 then
    return
  end
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local named = {}
    for at = 1, #info, 2 do
      named[info[at]] = info[at + 1]
    end
    local offset, ms = offset_of(named['last-delivered-id'])
    if share_groups[named.name] and (offset or (ms + 1) * width) >= next_offset then
      local last = next_offset > 0 and id_of(next_offset - 1) or '0-0'
      redis.call('XGROUP', 'SETID', stream, named.name, last)
    end
  end
end

-- Makes the log's last offset the stream's last id again, so that XADD takes the next one. XSETID refuses an id below
-- the largest deleted one, so that one is put back first: what was moved is not deleted. 0-0 would not be taken.
local function set_back(last_id, added, deleted, to_next)
  local end_id = next_offset > 1 and id_of(next_offset - 1) or '0-1'
  local deleted_offset = offset_of(deleted)
  if not deleted_offset or deleted_offset >= next_offset then
    deleted = end_id
  end
  deleted = deleted == '0-0' and '0-1' or deleted
  redis.call('XSETID', stream, last_id, 'ENTRIESADDED', added, 'MAXDELETEDID', deleted)
  if to_next then
    redis.call('XSETID', stream, end_id)
    set_groups_back()
  end
end

local failure

-- Step 1; returns true when nothing is left past `next`.
local function evacuate()
  local last_id, added, deleted = stream_ids()
  local moved, room, emptied = 0, bytes_left, false
  while moved < limit and bytes_left > 0 and not failure do
    local entries, ids = past_next(math.min(fitting(moved, room), limit - moved)), {}
    for _, entry in ipairs(entries) do
      if #entry[2] > arguments_max then
        failure = string.format('%s: entry %s has %d fields, too many to renumber it; remove it with XDEL', stream,
          entry[1], #entry[2] / 2)
        break
      end
      redis.call('XADD', moving, '*', 'id', entry[1], unpack(entry[2]))
      ids[#ids + 1] = entry[1]
      bytes_left = bytes_left - measure(entry[2], 0, 1)
    end
    if #ids > 0 then
      redis.call('XDEL', stream, unpack(ids))
      for group in pairs(share_groups) do
        redis.call('XACK', stream, group, unpack(ids))
      end
    end
    moved = moved + #ids
    if #entries == 0 then
      emptied = true
      break
    end
  end
  -- Even when nothing moved: the last id may be that of an entry which its writer deleted.
  if last_id ~= '0-0' then
    set_back(last_id, added - moved, deleted, emptied)
  end
  limit = limit - moved
  return emptied
end

-- Step 2. An entry keeps its id if that is free and an offset; else it gets the next free offset, in its own
-- millisecond or as soon after it as possible, for without a timestamp field its id is its time.
local function bring_back()
  local time = redis.call('TIME')
  local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  local changed, brought, room = 0, 0, bytes_left
  while limit > 0 and bytes_left > 0 and not failure do
    local entries, ids = redis.call('XRANGE', moving, '-', '+', 'COUNT', math.min(fitting(brought, room), limit)), {}
    for _, entry in ipairs(entries) do
      local fields = entry[2]
      local old, ms = offset_of(fields[2])
      local free = old or (ms < offsets_end / width and ms or now_ms) * width
      local offset = math.max(next_offset, free, 2) -- 0-1 is what an empty log is set back to
      if offset >= offsets_end then
        failure = 'the offsets of ' .. stream .. ' are used up'
        break
      end
      redis.call('XADD', stream, id_of(offset), unpack(fields, 3))
      ids[#ids + 1] = entry[1]
      changed = changed + (offset == old and 0 or 1)
      count_in(offset, fields, 3)
    end
    if #ids > 0 then
      redis.call('XDEL', moving, unpack(ids))
    end
    limit, brought = limit - #ids, brought + #ids
    if #entries == 0 then
      break
    end
  end
  return changed
end

local changed, more = 0, 0
if not is_moving then
  local left = take_in()
  if left == 'unreadable' then
    is_moving = true
  elseif left == 'more' then
    more = 1
  else
    -- No entry is left, but the last id may be that of a deleted one, above which XADD must go on.
    local last_id, added, deleted = stream_ids()
    local last = offset_of(last_id)
    if not last then
      set_back(last_id, added, deleted, true)
    elseif last_id ~= '0-0' and last >= next_offset then
      next_offset = last + 1
    end
  end
end
if is_moving then
  if evacuate() then
    changed = bring_back()
  end
  is_moving = redis.call('XLEN', moving) > 0 or #past_next(1) > 0
  more = is_moving and 1 or 0
  if redis.call('XLEN', moving) == 0 then
    redis.call('DEL', moving)
  end
end

if next_offset > known_next then
  redis.call('HSET', state, 'next', string.format('%d', next_offset), 'records', string.format('%d', records),
    'bytes', string.format('%d', bytes), 'max_timestamp', largest, 'interval', interval)
  if new_epochs then
    redis.call('HSET', state, 'epochs', new_epochs)
  end
end
if first then
  redis.call('HSET', state, 'first', string.format('%d', first))
end
if is_moving then
  redis.call('HSET', state, 'moving', '1')
else
  redis.call('HDEL', state, 'moving')
end
if next_offset > known_next then
  redis.call('SPUBLISH', channel, string.format('%d', next_offset))
end
if failure then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. failure)
end
return {changed, more, string.format('%d', next_offset)}
