#!lua flags=no-writes
-- Finds the intervals of a log in which records of a timestamp or a later one may lie, in order, by its sparse index.
-- KEYS     state, index
-- ARGV     topic id, 1 if offsets count records else 0, timestamp (ms), offset below which nothing is searched (-1:
--          the log's start), most rows to look at, most intervals to return
-- Returns  {log start, end, offset below which all was searched, then for each interval its first offset and the
--          one just past it}
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state or index)
--
-- The timestamps of the index are never too small, but may be too large if records have left the log: an interval may
-- hold no such record, and then the next one must be read. Timestamps are compared as doubles, all of them, so
-- one beyond 2^53 makes an interval too many, never one too few.

local state, index = KEYS[1], KEYS[2]
local topic_id, dense, timestamp = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])
local from, rows_left, intervals_left = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

-- @include shared/index_steps
-- @include shared/index_rows
local chunk = 100 -- rows copied into Lua at once

local held = redis.call('HMGET', state, 'topic', 'next', 'start', 'bytes', 'records', 'interval', 'max_timestamp')
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. state .. ' does not belong to topic id ' .. topic_id)
end
local next_offset, start, bytes = tonumber(held[2]), tonumber(held[3]), tonumber(held[4])
local records, interval = dense and next_offset or tonumber(held[5] or '0'), tonumber(held[6] or '-1')
if not (next_offset and start and bytes and records and interval) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end

local function text(offset)
  return string.format('%d', offset)
end

from = math.max(from, start)
local count = redis.call('ZCARD', index)
if count == 0 then
  -- Of a row that was there and is lost `interval` says nothing.
  interval = math.max(interval, tonumber(held[7] or '-1'))
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
