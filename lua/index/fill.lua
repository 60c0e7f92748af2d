#!lua flags=allow-oom
-- Replaces rows of the sparse index by rows made from the log. One bounded step.
-- KEYS     1 state
--          2 index
-- ARGV     1 topic id
--          2 stream of the compacted part when the rows were made ("" if there was none)
--          3 its end then
--          4 the log's start then
--          5 offset after which rows are replaced
--          6 offset up to which rows are replaced
--          7 "last" if no step follows, else ""
--          8 records below the log's start
--          9 bytes below the log's start
--          10 records that the state counts too few
--          11 bytes that the state counts too few
--          12 and on: for each row: its offset; its member
-- Returns  1; 0 if the log was compacted meanwhile, or the rows of the step before are gone: no row is written
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state)
--
-- Each step but the first follows one that ended with a row at its offset. If Redis has lost that one, as a replica
-- may have that was promoted, all must be done again: a gap between rows would show nowhere, and what lies in it be
-- found by no timestamp.
-- Rows after those that are filled in were written by appends meanwhile, and stay. Only if the state counted too few do
-- they go as well, being wrong: then the keeper rebuilds all of them in its next turn.
-- allow-oom: a log must be trimmed if memory is full, and that goes by the index.

local state, index = KEYS[1], KEYS[2]
local topic_id, clean, clean_end, known_start = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local after, last_offset, is_last = ARGV[5], ARGV[6], ARGV[7] == 'last'
local start_records, start_bytes, more_records, more_bytes = ARGV[8], ARGV[9], ARGV[10], ARGV[11]
local first_row = 12

local held = redis.call('HMGET', state, 'topic', 'log', 'clean', 'clean_end')
-- @include shared/log_fields
if (held[3] or '') ~= clean or (held[4] or '') ~= clean_end then
  return 0
end

if redis.call('TYPE', index).ok ~= 'zset' then
  redis.call('UNLINK', index)
end
if tonumber(after) > start and redis.call('ZCOUNT', index, after, after) == 0 then
  redis.call('HSET', state, 'reindex', '1')
  return 0
end
-- While the slot moves Redis refuses a script a key that it has emptied: a row without an offset keeps it until the end.
local no_row = ''
redis.call('ZADD', index, -1, no_row)
redis.call('ZREMRANGEBYSCORE', index, '(' .. after, last_offset)
for at = first_row, #ARGV, 2 do
  -- The start may have moved on: the rows below it are of no use any more.
  if tonumber(ARGV[at]) >= start then
    redis.call('ZADD', index, ARGV[at], ARGV[at + 1])
    local row_largest = string.match(ARGV[at + 1], '^%d+:%d+:(%-?%d+):')
    largest = math.min(math.max(largest, tonumber(row_largest)), exact_max)
  end
end
if not is_last then
-- @include shared/log_packed
  redis.call('HSET', state, 'log', packed_log)
  redis.call('ZREM', index, no_row)
  return 1
end
if start == tonumber(known_start) then
  redis.call('HSET', state, 'start_records', start_records, 'start_bytes', start_bytes)
end
if more_records ~= '0' or more_bytes ~= '0' then
  records, bytes = records + more_records, bytes + more_bytes
  redis.call('ZREMRANGEBYSCORE', index, '(' .. last_offset, '+inf')
  interval = largest
end
-- @include shared/log_packed
redis.call('HSET', state, 'log', packed_log)
redis.call('HDEL', state, 'reindex')
redis.call('ZREM', index, no_row)
return 1
