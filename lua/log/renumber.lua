#!lua flags=allow-oom
-- Takes external entries (XADDs by others) into a partition's log: advances its end over those whose ids are its next
-- offsets, and moves the others, with all that follow, to free offsets in their order. One bounded step.
-- KEYS     1 stream
--          2 state
--          3 moving
--          4 index
--          5 share
-- ARGV     1 topic id
--          2 leader epoch
--          3 offset sequence bits (0: dense ids)
--          4 most entries to look at or move
--          5 most bytes of them
--          6 channel
-- Returns  {entries that came to a new offset, 1 if another step is needed else 0, high watermark}
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER (a later leader epoch has begun), KAFKA_STORAGE_ERROR (a
--          malformed state, offsets used up, an entry of more fields than a script can pass on)
--
-- A stream takes no entry below its last id, so everything after the first entry without an offset must leave before
-- anything can come back. If that is more than one step may do, the entries wait in `moving`:
--   1. while the stream has entries past `next`: append them to `moving` with their ids, XDEL them;
--   2. when it has none: XSETID back to the last offset, and bring entries back from `moving`, oldest first.
-- The flag `moving` of the state closes the log meanwhile: nothing is appended to it, and readers stop at `next`. An
-- external entry that arrives between two steps lands past `next`, where 1. finds it and puts it after all others. With
-- dense ids the stream's last id is then the one of the last entry that waits, so `0-*` makes no id that one of these will
-- have. Every entry is always in exactly one of the two streams; a crash between two steps leaves work for the next caller.
-- A dense id has no time: an entry without a field `timestamp` is moved too, and comes back with one.
-- A Redis group knows entries by their ids: it gets an entry under its new id again, and all entries after it. With dense
-- ids this holds for any group, else for one that is part of a share group. If the move takes several steps the group gets
-- all entries past `next` again: between two steps it may have passed entries that wait.
-- allow-oom: a log is readable when memory is full, and what is moved leaves as much as it takes.

local stream, state, moving_stream, index, share = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local topic_id, leader_epoch, bits = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local limit, bytes_left, channel = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]

local dense = bits == 0
local chunk = 50 -- entries copied into Lua at once

-- @include shared/entry_ids

local held = redis.call('HMGET', state, 'topic', 'log')
-- @include shared/log_fields
local known_log, known_next = held[2], next_offset
-- @include shared/leader_epoch
-- @include shared/index_steps
-- @include shared/external_entry

-- The Redis groups that are parts of share groups, by name (shared/share_begin).
local share_groups = not dense and {} or nil
local share_fields = dense and {} or redis.pcall('HKEYS', share)
for _, field in ipairs(share_fields.err and {} or share_fields) do
  if string.find(field, '^h:') and string.find(redis.call('HGET', share, field), '^redis ') then
    share_groups[string.sub(field, 3)] = true
  end
end
-- @include shared/renumbering

-- @include shared/clock

local function past_next(count)
  return redis.call('XRANGE', stream, '(' .. id_of_end(next_offset), '+', 'COUNT', count)
end

local row_bytes
-- An entry of this size is the log's last record from now on.
local function count_in(end_offset, size, timestamp)
  local stamp = math.min(tonumber(timestamp), exact_max)
  records, bytes = dense and end_offset or records + 1, bytes + size
  largest, interval = math.max(largest, stamp), math.max(interval, stamp)
  first = first >= 0 and first or end_offset - 1
  next_offset, bytes_left = end_offset, bytes_left - size
-- @include shared/index_row
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
      local end_offset, size, timestamp = end_of_id(entry[1]), measure(entry[2], 1)
      if not end_offset or dense and (end_offset ~= next_offset + 1 or not timestamp) then
        return 'unreadable'
      end
      if limit == 0 or bytes_left <= 0 then
        return 'more'
      end
      count_in(end_offset, size, timestamp or time_of(entry[1], now_ms))
      limit, taken = limit - 1, taken + 1
    end
  end
end

local failure

-- Step 1; when nothing is left past `next`, returns the lowest end that the next entry can follow.
local function evacuate()
  local last_id, added, deleted = stream_ids()
  local moved, room, emptied = 0, bytes_left, false
  local waiting, lowest = redis.call('XLEN', moving_stream), lowest_end(next_offset, deleted)
  local kept_end = lowest
  while moved < limit and bytes_left > 0 and not failure do
    local entries, ids, others = past_next(math.min(fitting(moved, room), limit - moved)), {}, {}
    for _, entry in ipairs(entries) do
      if #entry[2] > arguments_max then
        failure = string.format('%s: entry %s has %d fields, too many to renumber it; remove it with XDEL', stream,
          entry[1], #entry[2] / 2)
        break
      end
      redis.call('XADD', moving_stream, '*', 'id', entry[1], unpack(entry[2]))
      ids[#ids + 1], waiting = entry[1], waiting + 1
      if not dense or end_of_id(entry[1]) ~= lowest + waiting then
        others[#others + 1] = entry[1]
      elseif kept_end == lowest + waiting - 1 then
        kept_end = kept_end + 1
      end
      bytes_left = bytes_left - measure(entry[2], 1)
    end
    if #ids > 0 then
      remove(ids, next_offset)
      forget(others)
    end
    moved = moved + #ids
    if #entries == 0 then
      emptied = true
      break
    end
  end
  -- Even when nothing moved: the last id may be that of an entry which its writer deleted.
  if last_id ~= '0-0' then
    set_back(next_offset, last_id, added - moved, deleted, emptied)
  end
  if emptied then
    go_on_at(kept_end)
  end
  limit = limit - moved
  return emptied and lowest
end

-- Step 2. An entry keeps its id if that is free and an offset; else it gets the next free offset: with dense ids the log's
-- end, else in its own millisecond or as soon after it as possible, for without a field `timestamp` its id is its time.
local function bring_back(lowest)
  local changed, brought, room = 0, 0, bytes_left
  lowest = math.max(lowest, end_of_id('0-0'))
  while limit > 0 and bytes_left > 0 and not failure do
    local entries, ids = redis.call('XRANGE', moving_stream, '-', '+', 'COUNT', math.min(fitting(brought, room), limit)), {}
    for _, entry in ipairs(entries) do
      local fields = entry[2]
      local old_id, free = fields[2], 0
      local size, timestamp = measure(fields, 3)
      if dense and not timestamp then
        timestamp = time_of(old_id, now_ms)
        fields[#fields + 1], fields[#fields + 2] = 'timestamp', timestamp
        size = size + #'timestamp' + #timestamp
      elseif not dense then
        local ms = tonumber(string.match(old_id, '^%d+'))
        free = end_of_id(old_id) or (ms < offsets_end / 2 ^ bits and ms or now_ms) * 2 ^ bits + 1
      end
      local end_offset = math.max(next_offset + 1, lowest + 1, free)
      if next_offset == offsets_end then
        failure = 'the offsets of ' .. stream .. ' are used up'
        break
      end
      local id = id_of_end(end_offset)
      redis.call('XADD', stream, id, unpack(fields, 3))
      ids[#ids + 1] = entry[1]
      changed = changed + (id == old_id and 0 or 1)
      count_in(end_offset, size, timestamp or time_of(id, now_ms))
    end
    if #ids > 0 then
      redis.call('XDEL', moving_stream, unpack(ids))
    end
    limit, brought = limit - #ids, brought + #ids
    if #entries == 0 then
      break
    end
  end
  return changed
end

local changed, more = 0, 0
if moving == 0 then
  local left = take_in()
  if left == 'unreadable' then
    moving = 1
  elseif left == 'more' then
    more = 1
  else
    -- No entry is left, but the last id may be that of a deleted one, above which XADD must go on.
    local last_id, added, deleted = stream_ids()
    local last_end = end_of_id(last_id)
    if last_id ~= '0-0' and (not last_end or last_end > next_offset) then
      if dense or not last_end then
        last_end = set_back(next_offset, last_id, added, deleted, true)
        go_on_at(next_offset)
      end
      next_offset = math.max(next_offset, last_end)
    end
  end
end
if moving == 1 then
  local lowest = evacuate()
  if lowest then
    changed = bring_back(lowest)
  end
  local waiting = redis.call('XLEN', moving_stream)
  moving = (waiting > 0 or #past_next(1) > 0) and 1 or 0
  more = moving
  if waiting == 0 then
    redis.call('DEL', moving_stream)
  elseif dense and lowest then
    redis.call('XSETID', stream, id_of_end(math.max(next_offset, lowest) + waiting))
  end
end

if new_epochs and next_offset > known_next then
  redis.call('HSET', state, 'epochs', new_epochs)
  last_epoch = leader_epoch
end
-- @include shared/log_packed
if packed_log ~= known_log then
  redis.call('HSET', state, 'log', packed_log)
end
if next_offset > known_next then
  redis.call('SPUBLISH', channel, string.format('%d', next_offset))
end
if failure then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. failure)
end
return {changed, more, string.format('%d', next_offset)}
