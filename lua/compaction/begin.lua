#!lua flags=allow-oom
-- Begins a pass of compaction: one that was begun before may write no more, and what it wrote is removed.
-- KEYS     1 state
--          2 index
--          3 clean:0
--          4 clean:1
-- ARGV     1 topic id
--          2 token of the pass
--          3 end of the compacted part as the caller knows it
--          4 offset up to which to compact
-- Returns  {outcome, which of the two segments the pass writes: 0 or 1, log start, high watermark, member of the
--          index row at that offset}; the outcome is BEGUN or CHANGED (nothing is done: read the state again)
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state or index)
--
-- A pass ends at a row of the index, whose counters are the ones that rows below it are counted back from. If it ends at
-- the end of the log that row is written here: the tail is sealed, as if it were as large as an interval.

local state, index = KEYS[1], KEYS[2]
local clean = {KEYS[3], KEYS[4]}
local topic_id, token, known_end, wanted = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local held = redis.call('HMGET', state, 'topic', 'log', 'clean', 'clean_end')
-- @include shared/log_fields

local start_text, end_text = string.format('%d', start), string.format('%d', next_offset)
if (held[4] or '0') ~= known_end or tonumber(wanted) > next_offset then
  return {'CHANGED', 0, start_text, end_text, ''}
end
local row = redis.call('ZRANGEBYSCORE', index, wanted, wanted, 'LIMIT', 0, 1)[1]
if not row then
  if wanted ~= end_text then
    return {'CHANGED', 0, start_text, end_text, ''}
  end
  row = string.format('%d:%d:%d:%d', records, bytes, largest, interval)
  redis.call('ZADD', index, wanted, row)
  interval = -1
-- @include shared/log_packed
  redis.call('HSET', state, 'log', packed_log)
end

local which = held[3] == '0' and 1 or 0
redis.call('UNLINK', clean[which + 1])
redis.call('HSET', state, 'clean_token', token)
return {'BEGUN', which, start_text, end_text, row}
