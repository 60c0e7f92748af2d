-- The first part of an append, in place: the topic id and the partition's state.
-- Needs   stream, state, topic_id, dense (offsets count records); shared/entry_ids
-- Leaves  next_offset, log_end (the same; in format record the next record may lie later), start, first, bytes, records,
--         largest and interval (texts), epochs, lake_start, bytes_before, records_before, held, now_ms
local held = redis.call('HMGET', state, 'topic', 'next', 'start', 'first', 'bytes', 'max_timestamp', 'interval', 'records',
  'moving', 'lake_start', 'epochs')
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. stream .. ' does not belong to topic id ' .. topic_id)
end
local next_offset, start, first = tonumber(held[2]), tonumber(held[3]), tonumber(held[4] or '')
local bytes, largest, interval = tonumber(held[5]), held[6], held[7] or '-1'
local records = dense and next_offset or tonumber(held[8] or '0')
if not (next_offset and next_offset >= 0 and next_offset <= offsets_end and start and bytes and records
    and (first or not held[4]) and tonumber(largest) and tonumber(interval)) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end
local records_before, bytes_before, log_end = records, bytes, next_offset
local lake_start, epochs = tonumber(held[10] or ''), held[11]

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
