#!lua flags=allow-oom
-- Removes external entries (XADDs by others) past the end of a log in format batch, and sets the stream's last id back to
-- that end. One bounded step.
-- KEYS     stream, state
-- ARGV     topic id, most entries to remove
-- Returns  {entries removed, 1 if another step is needed else 0, high watermark}
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state)
--
-- allow-oom: XSETID counts as a command that takes memory, and this script only frees some.

local stream, state = KEYS[1], KEYS[2]
local topic_id, limit, bits, share_groups = ARGV[1], tonumber(ARGV[2]), -1, nil

-- @include shared/whole_number
-- @include shared/entry_ids
-- @include shared/renumbering
-- @include shared/expel_entries

local held = redis.call('HMGET', state, 'topic', 'next')
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. stream .. ' does not belong to topic id ' .. topic_id)
end
local next_offset = whole(held[2])
if not next_offset then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end
if redis.call('EXISTS', stream) == 0 then
  return {0, 0, held[2]}
end

local removed, lowest = expel_entries(next_offset, limit)
if lowest and lowest > next_offset then
  next_offset = lowest
  redis.call('HSET', state, 'next', string.format('%d', next_offset))
end
return {removed, lowest and 0 or 1, string.format('%d', next_offset)}
