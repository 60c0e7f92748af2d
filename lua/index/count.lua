#!lua flags=no-writes
-- Counts the records of a log from an offset on: the entries up to the next row of its index, and what that row counts of
-- all after it. One bounded step.
-- KEYS     1 state
--          2 index
--          3 stream
--          4 clean:0
--          5 clean:1
-- ARGV     1 topic id
--          2 offset sequence bits (0: dense ids, -1: format batch)
--          3 offset to count from (-1: the log's start)
--          4 most entries
-- Returns  {records, offset from which on there are more to be counted, -1 if these are all}
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state or index)
--
-- Dense offsets count records, and no entry is read.

local state, index, stream, cleans = KEYS[1], KEYS[2], KEYS[3], {['0'] = KEYS[4], ['1'] = KEYS[5]}
local topic_id, bits, from, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- @include shared/index_rows
-- @include shared/entry_ids
local chunk, bytes_left = 100, 4194304 -- entries copied into Lua at once, and bytes in all if all are alike

local held = redis.call('HMGET', state, 'topic', 'log', 'clean', 'clean_end')
-- @include shared/log_fields
-- @include shared/whole_number
local clean_end = whole(held[3] and held[4] or '0')
if not (clean_end and (not held[3] or cleans[held[3]])) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end
from = math.max(from, start)
if bits <= 0 then
  return {math.max(next_offset - from, 0), '-1'}
end

local function text(offset)
  return string.format('%d', offset)
end

local rows = rows_of(redis.call('ZRANGEBYSCORE', index, text(from), '+inf', 'WITHSCORES', 'LIMIT', 0, 1))
if not rows then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. index .. ' is malformed')
end
local row = rows[1] or {offset = next_offset, records = records}

local counted, fitting = 0, 1 -- few at first, until it is known how large entries are
while from < row.offset do
  if counted >= limit or bytes_left <= 0 then
    return {counted, text(from)}
  end
  local is_clean = from < clean_end
  local part_end = math.min(row.offset, is_clean and clean_end or row.offset)
  local entries = redis.call('XRANGE', is_clean and cleans[held[3]] or stream, '(' .. id_of_end(from),
    id_of_end(part_end), 'COUNT', fitting)
  counted = counted + #entries
  if #entries < fitting then
    from = part_end
  else
    local last, size = entries[fitting], 1
    from = end_of_id(last[1])
    for _, field in ipairs(last[2]) do
      size = size + #field
    end
    bytes_left = bytes_left - size * fitting
    fitting = math.max(1, math.min(chunk, 4 * fitting, math.floor(bytes_left / size)))
  end
end
return {counted + math.max(records - row.records, 0), '-1'}
