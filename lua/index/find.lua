#!lua flags=no-writes
-- Finds the intervals of a log in which records of a timestamp or a later one may lie, in order, by its sparse index.
-- KEYS     1 state
--          2 index
-- ARGV     1 topic id
--          2 timestamp (ms, at most 2^53)
--          3 offset below which nothing is searched (-1: the log's start)
--          4 most rows to look at
--          5 most intervals to return
-- Returns  {log start, end, offset below which all was searched, then for each interval its first offset and the
--          one just past it}
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state or index)
--
-- The timestamps of the index are never too small, but may be too large if records have left the log: an interval may
-- hold no such record, and then the next one must be read. One of 2^53 stands for any later one too.

local state, index = KEYS[1], KEYS[2]
local topic_id, timestamp = ARGV[1], tonumber(ARGV[2])
local from, rows_left, intervals_left = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

-- @include shared/index_rows
local chunk = 100 -- rows copied into Lua at once

local held = redis.call('HMGET', state, 'topic', 'log')
-- @include shared/log_fields
-- @include shared/index_steps

local function text(offset)
  return string.format('%d', offset)
end

from = math.max(from, start)
local count = redis.call('ZCARD', index)
if count == 0 then
  -- Of a row that was there and is lost `interval` says nothing.
  interval = largest
end
local newest = count > 0 and rows_of(redis.call('ZRANGE', index, count - 1, count - 1, 'WITHSCORES'))
local malformed = newest == nil

-- Of the rows above `from` the first whose largest timestamp is large enough.
local rank, high = redis.call('ZCOUNT', index, '-inf', text(from)), count
local before = rank
while rank < high and not malformed do
  local middle = math.floor((rank + high) / 2)
  local row = rows_of(redis.call('ZRANGE', index, middle, middle, 'WITHSCORES'))
  malformed = not row
  if row and row[1].largest >= timestamp then
    high = middle
  else
    rank = middle + 1
  end
end
if rank > before and not malformed then
  local row = rows_of(redis.call('ZRANGE', index, rank - 1, rank - 1, 'WITHSCORES'))
  malformed = not row
  from = row and row[1].offset or from
end

local found = {}
while rank < count and rows_left > 0 and intervals_left > 0 and not malformed do
  local rows = rows_of(redis.call('ZRANGE', index, rank, rank + math.min(chunk, rows_left) - 1, 'WITHSCORES'))
  malformed = not rows
  for _, row in ipairs(rows or {}) do
    if intervals_left == 0 then
      break
    end
    if row.interval >= timestamp then
      found[#found + 1], found[#found + 2] = text(from), text(row.offset)
      intervals_left = intervals_left - 1
    end
    rank, rows_left, from = rank + 1, rows_left - 1, row.offset
  end
end
if malformed then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. index .. ' is malformed')
end
if rank >= count and intervals_left > 0 and from < next_offset then
  -- After the last row the state counts, unless rows are missing, which the counters show.
  local last = newest and newest[1]
  local misses = math.floor(records / records_per_row) ~= math.floor((last and last.records or 0) / records_per_row)
    or math.floor(bytes / bytes_per_row) ~= math.floor((last and last.bytes or 0) / bytes_per_row)
  if interval >= timestamp or misses then
    found[#found + 1], found[#found + 2] = text(from), text(next_offset)
  end
  from = next_offset
end
return {text(start), text(next_offset), text(from), unpack(found)}
