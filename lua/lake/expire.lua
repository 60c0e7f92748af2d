#!lua flags=allow-oom
-- Moves the start of a log in the lake up: what lies below it is no part of the log any more, wherever it still lies.
-- KEYS     state
-- ARGV     topic id, the log's new start
-- Returns  the start of the log in the lake, as it is now; "-1" if nothing of it is archived
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE (past the end), KAFKA_STORAGE_ERROR (a malformed state)
--
-- allow-oom: it rewrites a number, and what is deleted must go even if no memory is left.

local state = KEYS[1]
local topic_id, new_start = ARGV[1], tonumber(ARGV[2])

-- @include shared/whole_number

local held = redis.call('HMGET', state, 'topic', 'next', 'lake_start')
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. state .. ' does not belong to topic id ' .. topic_id)
end
local next_offset, start = whole(held[2]), whole(held[3] or '0')
if not (next_offset and start) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end
if new_start > next_offset then
  return redis.error_reply(string.format('OFFSET_OUT_OF_RANGE %s ends at %d, before %d', state, next_offset, new_start))
end
if not held[3] then
  return '-1'
end
if new_start > start then
  redis.call('HSET', state, 'lake_start', string.format('%d', new_start))
  start = new_start
end
return string.format('%d', start)
