#!lua flags=no-writes
-- Finds how old the first record of a log is from an offset on. One entry is read, and those of other
-- clients before it.
-- KEYS     1 state
--          2 stream
--          3 clean:0
--          4 clean:1
-- ARGV     1 topic id
--          2 offset sequence bits (0: dense ids, -1: format batch)
--          3 offset to look from (-1: the log's start)
-- Returns  the record's age (ms) by its timestamp and Redis' clock, negative if the timestamp lies in the future; ""
--          without a record, or for one without a timestamp
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state)
--
-- In format batch it is the first record of the batch that holds the offset: the others may be compressed.

local state, stream, cleans = KEYS[1], KEYS[2], {['0'] = KEYS[3], ['1'] = KEYS[4]}
local topic_id, bits, from = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- @include shared/entry_ids
-- @include shared/external_entry
local log_append_time_bit = 8 -- of a batch's attributes: its largest timestamp is that of all its records

local held = redis.call('HMGET', state, 'topic', 'log', 'clean', 'clean_end')
-- @include shared/log_fields
-- @include shared/whole_number
local clean_end = whole(held[3] and held[4] or '0')
if not (clean_end and (not held[3] or cleans[held[3]])) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end

-- The first entry from the offset `first` on, up to `last`. In format batch it passes entries of other clients.
local function entry(key, first, last)
  while first < last do
    local next_entry = redis.call('XRANGE', key, '(' .. id_of_end(first), id_of_end(last), 'COUNT', 1)[1]
    if not next_entry or bits >= 0 or next_entry[2][1] == 'batch' then
      return next_entry
    end
    first = end_of_id(next_entry[1])
  end
end

from = math.max(from, start)
local found = held[3] and entry(cleans[held[3]], from, math.min(clean_end, next_offset))
found = found or entry(stream, math.max(from, clean_end), next_offset)
if not found then
  return ''
end

local function timestamp_of(id, fields)
  if bits >= 0 then
    local _, timestamp = measure(fields, 1)
    return tonumber(timestamp or bits > 0 and string.match(id, '^%d+') or -1)
  end
  local header = fields[2]
  if #header < 61 then
    return -1
  end
  local at_append = math.floor(string.byte(header, 23) / log_append_time_bit) % 2 == 1
  local high, low = struct.unpack('>i4I4', header, at_append and 36 or 28)
  return high * 4294967296 + low
end

-- @include shared/clock
local timestamp = timestamp_of(found[1], found[2])
if timestamp < 0 then
  return ''
end
return string.format('%.0f', now_ms - timestamp)
