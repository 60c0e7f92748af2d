#!lua flags=allow-oom
-- Records in a partition's state how far the lake holds it, after a commit there.
-- KEYS     1 state
-- ARGV     1 topic id
--          2 offset up to which records are archived
--          3 first offset that the lake holds
-- Returns  {archived, start of the log in the lake}, as they are now
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE (past the end), KAFKA_STORAGE_ERROR (a malformed state)
--
-- It never goes back: an archiver that comes late reports what is true no longer. Trimming goes by it, so it is recorded
-- only after the commit. The start in the lake is recorded once, and what has left the log by then stays deleted; from
-- then on only deletion and the lake's retention move it.
-- allow-oom: what is archived may be trimmed, which frees memory, and two numbers take next to none.

local state = KEYS[1]
local topic_id, archived, lake_first = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- @include shared/whole_number

local held = redis.call('HMGET', state, 'topic', 'log', 'archived')
-- @include shared/log_fields
local before = whole(held[3] or '0')
if not before then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end
if archived > next_offset then
  return redis.error_reply(string.format('OFFSET_OUT_OF_RANGE %s ends at %d, before %d', state, next_offset, archived))
end
archived = math.max(archived, before)
if lake_start < 0 then
  lake_start = math.min(math.max(lake_first, start), next_offset)
end
local archived_text = string.format('%d', archived)
-- @include shared/log_packed
redis.call('HSET', state, 'archived', archived_text, 'log', packed_log)
return {archived_text, string.format('%d', lake_start)}
