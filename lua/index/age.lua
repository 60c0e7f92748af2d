#!lua flags=no-writes
-- Finds how old the first record of a log is from an offset on. One entry is read.
-- KEYS     state, stream, clean:0, clean:1
-- ARGV     topic id, offset sequence bits (0: dense ids, -1: format batch), offset to look from (-1: the log's start)
-- Returns  the record's age (ms) by its timestamp and Redis' clock, negative if the timestamp lies in the future; ""
--          without a record, or for one without a timestamp
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state)
--
-- In format batch it is the first record of the batch that holds the offset: the others may be compressed.

local state, stream, cleans = KEYS[1], KEYS[2], {['0'] = KEYS[3], ['1'] = KEYS[4]}
local topic_id, bits, from = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- @include shared/whole_number
-- @include shared/entry_ids
-- @include shared/external_entry
local log_append_time_bit = 8 -- of a batch's attributes: its largest timestamp is that of all its records

local held = redis.call('HMGET', state, 'topic', 'next', 'start', 'clean', 'clean_end')
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. state .. ' does not belong to topic id ' .. topic_id)
end
local next_offset, start, clean_end = whole(held[2]), whole(held[3]), whole(held[4] and held[5] or '0')
if not (next_offset and start and clean_end and (not held[4] or cleans[held[4]])) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end

-- The first entry that holds an offset from `first` on, of those that end before `last`.
local function entry(key, first, last)
  if first >= last then
    return nil
  end
  return redis.call('XRANGE', key, '(' .. id_of_end(first), id_of_end(last), 'COUNT', 1)[1]
end

from = math.max(from, start)
local found = held[4] and entry(cleans[held[4]], from, math.min(clean_end, next_offset))
found = found or entry(stream, math.max(from, clean_end), next_offset)
if not found then
  return ''
end

local function timestamp_of(id, fields)
  if bits >= 0 then
    local _, timestamp = measure(fields, 1)
    return tonumber(timestamp or bits > 0 and string.match(id, '^%d+') or -1)
  end
  local header = fields[1] == 'batch' and #fields[2] >= 61 and fields[2]
  if not header then
    return -1
  end
  local at_append = math.floor(string.byte(header, 23) / log_append_time_bit) % 2 == 1
  local high, low = struct.unpack('>i4I4', header, at_append and 36 or 28)
  return high * 4294967296 + low
end

local timestamp, time = timestamp_of(found[1], found[2]), redis.call('TIME')
if timestamp < 0 then
  return ''
end
return string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) - timestamp)
