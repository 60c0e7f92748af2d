#!lua flags=allow-oom
-- Moves the start of a log in the lake up: what lies below it is no part of the log any more, wherever it still lies.
-- KEYS     1 state
-- ARGV     1 topic id
--          2 the log's new start
-- Returns  the start of the log in the lake, as it is now; "-1" if nothing of it is archived
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE (past the end), KAFKA_STORAGE_ERROR (a malformed state)
--
-- allow-oom: it rewrites a number, and what is deleted must go even if no memory is left.

local state = KEYS[1]
local topic_id, new_start = ARGV[1], tonumber(ARGV[2])

local held = redis.call('HMGET', state, 'topic', 'log')
-- @include shared/log_fields
if new_start > next_offset then
  return redis.error_reply(string.format('OFFSET_OUT_OF_RANGE %s ends at %d, before %d', state, next_offset, new_start))
end
if lake_start >= 0 and new_start > lake_start then
  lake_start = new_start
-- @include shared/log_packed
  redis.call('HSET', state, 'log', packed_log)
end
return string.format('%d', lake_start)
