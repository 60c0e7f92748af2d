#!lua flags=allow-oom
-- Records in a partition's state how far the lake holds it, after a commit there.
-- KEYS     state
-- ARGV     topic id, offset up to which records are archived, first offset that the lake holds
-- Returns  {archived, start of the log in the lake}, as they are now
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE (past the end), KAFKA_STORAGE_ERROR (a malformed state)
--
-- It never goes back: an archiver that comes late reports what is true no longer. Trimming goes by it, so it is recorded
-- only after the commit. The start in the lake is recorded once, and what has left the log by then stays deleted; from
-- then on only deletion and the lake's retention move it.
-- allow-oom: what is archived may be trimmed, which frees memory, and two numbers take next to none.

local state = KEYS[1]
local topic_id, archived, first = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- @include shared/whole_number

local held = redis.call('HMGET', state, 'topic', 'next', 'start', 'archived', 'lake_start')
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. state .. ' does not belong to topic id ' .. topic_id)
end
local next_offset, log_start = whole(held[2]), whole(held[3])
local before, start = whole(held[4] or '0'), whole(held[5] or '0')
if not (next_offset and log_start and before and start) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end
if archived > next_offset then
  return redis.error_reply(string.format('OFFSET_OUT_OF_RANGE %s ends at %d, before %d', state, next_offset, archived))
end
archived = math.max(archived, before)
if not held[5] then
  start = math.max(first, log_start)
end
local archived_text, start_text = string.format('%d', archived), string.format('%d', start)
redis.call('HSET', state, 'archived', archived_text, 'lake_start', start_text)
return {archived_text, start_text}
