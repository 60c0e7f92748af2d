#!lua flags=allow-oom
-- Removes external entries (XADDs by others) past the end of a log in format batch, and sets the stream's last id back to
-- that end. One bounded step.
-- KEYS     1 stream
--          2 state
-- ARGV     1 topic id
--          2 most entries to remove
-- Returns  {entries removed, 1 if another step is needed else 0, high watermark}
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state)
--
-- allow-oom: XSETID counts as a command that takes memory, and this script only frees some.

local stream, state = KEYS[1], KEYS[2]
local topic_id, limit, bits, share_groups = ARGV[1], tonumber(ARGV[2]), -1, nil

-- @include shared/entry_ids
-- @include shared/renumbering
-- @include shared/expel_entries

local held = redis.call('HMGET', state, 'topic', 'log')
-- @include shared/log_fields
if redis.call('EXISTS', stream) == 0 then
  return {0, 0, string.format('%d', next_offset)}
end

local removed, lowest = expel_entries(next_offset, limit)
if lowest and lowest > next_offset then
  next_offset = lowest
-- @include shared/log_packed
  redis.call('HSET', state, 'log', packed_log)
end
return {removed, lowest and 0 or 1, string.format('%d', next_offset)}
