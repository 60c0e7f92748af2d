#!lua flags=allow-oom
-- Moves the start of a log up, and frees the memory of what lies below it. One bounded step.
-- KEYS     1 stream
--          2 state
--          3 index
--          4 clean:0
--          5 clean:1
--          6 aborted
-- ARGV     1 topic id
--          2 offset sequence bits (0, -1: dense ids)
--          3 the log's new start (-1: none)
--          4 the first record's offset from there on (-1: none is known)
--          5 most entries of a step if their bytes are not known
--          6 most bytes of a step if the index knows them
-- Returns  {log start, records that left the log, entries that were freed, 1 if another step is needed else 0}
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE (past the end), KAFKA_STORAGE_ERROR (a malformed state or
--          index)
--
-- The start moves at once and for all readers; the entries below it follow, interval by interval of the index, whose
-- rows hold how many bytes lie between them. The lowest row is the one up to which entries were freed: rows below
-- the start go with their entries, so a step that never came is found by the next caller.
-- XTRIM with `~` frees whole nodes only and takes no node with more entries than its LIMIT, so a second one tries what
-- the first could not. What it leaves of a node is less than the node, and goes with what follows.
-- Transactions whose abort marker lies below the start have no record left: their rows in `aborted` go in the same step.
-- allow-oom: what frees memory must work if none is left.

local stream, state, index, aborted = KEYS[1], KEYS[2], KEYS[3], KEYS[6]
local streams = {stream, KEYS[4], KEYS[5]}
local topic_id, bits, new_start, first_record = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local limit, bytes_left = tonumber(ARGV[5]), tonumber(ARGV[6])

local rows_max = 64 -- index rows of one step
local large_nodes = 100 -- times the limit, for nodes that hold more entries than it

-- @include shared/whole_number
-- @include shared/entry_ids

local held = redis.call('HMGET', state, 'topic', 'log', 'start_records', 'clean_end', 'aborted', 'start_bytes')
-- @include shared/log_fields
local start_records, clean_end = whole(held[3] or '0'), whole(held[4] or '0') -- 0 if the log was never compacted
if not (start_records and clean_end) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end
if new_start > next_offset then
  return redis.error_reply(string.format('OFFSET_OUT_OF_RANGE %s ends at %d, before %d', stream, next_offset, new_start))
end

-- @include shared/index_rows

local moves = new_start > start
if moves then
  start = new_start
end
local lowest = rows_of(redis.call('ZRANGE', index, 0, rows_max - 1, 'WITHSCORES'))
local score = string.format('%d', start)
local below = rows_of(redis.call('ZREVRANGEBYSCORE', index, score, '-inf', 'WITHSCORES', 'LIMIT', 0, 1))
local above = rows_of(redis.call('ZRANGEBYSCORE', index, '(' .. score, '+inf', 'WITHSCORES', 'LIMIT', 0, 1))
if not (lowest and below and above) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. index .. ' is malformed')
end
below, above = below[1], above[1]

for _, key in ipairs(streams) do
  redis.call('XLEN', key) -- refuses a key of another type before anything is written
end
redis.call('ZCARD', aborted)

local left = 0
if start == next_offset and redis.call('EXISTS', stream) == 0 then
  -- Somebody has deleted the stream. Nothing of the log is left now, so it can go on.
  redis.call('XGROUP', 'CREATE', stream, 'korvet', '$', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', stream, 'korvet')
end
if moves then
  local gone, start_bytes = start_records, nil
  if start == next_offset then
    gone, start_bytes = records, bytes
  elseif below then
    gone, start_bytes = below.records, below.bytes
  end
  if bits <= 0 and start >= clean_end then
    gone = start -- dense: the offset is the count, unless records were compacted away
  end
  left = math.max(gone - start_records, 0)
  if start == next_offset then
    first = -1 -- the next append sets it
  elseif first >= 0 then
    first = math.min(math.max(first, start, first_record), next_offset) -- Redis may have lost that record since
  end
-- @include shared/log_packed
  redis.call('HSET', state, 'log', packed_log, 'start_records', string.format('%d', start_records + left))
  if start_bytes and start_bytes > (tonumber(held[6] or '') or 0) then
    redis.call('HSET', state, 'start_bytes', string.format('%d', start_bytes))
  end
end

local given, known_entries = 0, entries
local function trim(keys, offset, most)
  local id, removed = id_after(offset), 0
  for _, key in ipairs(keys) do
    local gone = redis.call('XTRIM', key, 'MINID', '~', id, 'LIMIT', most)
    removed, entries = removed + gone, key == stream and math.max(entries - gone, 0) or entries
  end
  given = given + removed
  return removed > 0
end

local function trim_piece(keys, offset)
  return trim(keys, offset, limit) or trim(keys, offset, limit * large_nodes)
end

-- What lies from `from` to `offset`, all of it if it is known to be few bytes, else a piece; returns whether nothing
-- is left.
local function free(from, offset, size)
  -- Of a compacted part the rows count what was kept. In the log itself all may be there still, until compaction/free.
  if from < clean_end and trim_piece({stream}, offset) then
    return false
  end
  if size and size <= bytes_left then
    while trim(streams, offset, limit * large_nodes) do
    end
    bytes_left = bytes_left - size
    return true
  end
  return not trim_piece(streams, offset)
end

local finished, from, known, is_done = 0, 0, nil, start == 0
for _, row in ipairs(start > 0 and lowest or {}) do
  if row.offset > start then
    break
  end
  if not free(from, row.offset, known and math.max(row.bytes - known, 0)) then
    break
  end
  finished, from, known = finished + 1, row.offset, row.bytes
end
if start > 0 and (finished == #lowest or lowest[finished + 1].offset > start) and finished < rows_max then
  -- The last piece, from the last row to the start itself, is no larger than its interval.
  is_done = free(from, start, known and (above and above.bytes or bytes) - known)
end
if entries ~= known_entries then
-- @include shared/log_packed
  redis.call('HSET', state, 'log', packed_log)
end
if finished > 1 then
  redis.call('ZREMRANGEBYRANK', index, 0, finished - 2)
end
if moves and held[5] then
  -- The last step: while the slot moves Redis refuses a script a key that it has emptied.
  redis.call('ZREMRANGEBYSCORE', aborted, '-inf', '(' .. score)
end
return {score, left, given, is_done and 0 or 1}
