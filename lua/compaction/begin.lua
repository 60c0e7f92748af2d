#!lua flags=allow-oom
-- Begins a pass of compaction: one that was begun before may write no more, and what it wrote is removed.
-- KEYS     state, index, clean:0, clean:1
-- ARGV     topic id, token of the pass, end of the compacted part as the caller knows it, offset up to which to
--          compact, "dense" if offsets count records (format batch) else ""
-- Returns  {outcome, which of the two segments the pass writes: 0 or 1, log start, high watermark, member of the
--          index row at that offset}; the outcome is BEGUN or CHANGED (nothing is done: read the state again)
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state or index)
--
-- A pass ends at a row of the index, whose counters are the ones that rows below it are counted back from. If it ends at
-- the end of the log that row is written here: the tail is sealed, as if it were as large as an interval.

local state, index = KEYS[1], KEYS[2]
local clean = {KEYS[3], KEYS[4]}
local topic_id, token, known_end, wanted, dense = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == 'dense'

local held = redis.call('HMGET', state, 'topic', 'next', 'start', 'bytes', 'records', 'max_timestamp', 'interval', 'clean',
  'clean_end')
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. state .. ' does not belong to topic id ' .. topic_id)
end
local next_offset, bytes = tonumber(held[2]), tonumber(held[4])
local records = dense and next_offset or tonumber(held[5] or '0')
if not (next_offset and bytes and records and tonumber(held[3]) and tonumber(held[6])) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end

local function row_at(offset)
  return redis.call('ZRANGEBYSCORE', index, offset, offset, 'LIMIT', 0, 1)[1]
end

if (held[9] or '0') ~= known_end or tonumber(wanted) > next_offset then
  return {'CHANGED', 0, held[3], held[2], ''}
end
local row = row_at(wanted)
if not row then
  if wanted ~= held[2] then
    return {'CHANGED', 0, held[3], held[2], ''}
  end
  row = string.format('%d:%d:%s:%s', records, bytes, held[6], held[7] or '-1')
  redis.call('ZADD', index, wanted, row)
  redis.call('HSET', state, 'interval', '-1')
end

local which = held[8] == '0' and 1 or 0
redis.call('UNLINK', clean[which + 1])
redis.call('HSET', state, 'clean_token', token)
return {'BEGUN', which, held[3], held[2], row}
