#!lua flags=allow-oom
-- Deletes a share group's part of a partition, with its Redis group.
-- KEYS     1 stream
--          2 state
--          3 share
-- ARGV     1 topic id
--          2 group
--          3 offset sequence bits (0: dense ids)
-- Returns  1 if there was a part, 0 if not
-- Errors   STALE_BROKER_EPOCH (shared/lease), UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state)
--
-- A Redis group that is no share group's stays. allow-oom: this frees memory.

-- @include shared/lease
-- @include shared/whole_number

local stream, state, share = KEYS[1], KEYS[2], KEYS[3]
local topic_id, group, bits = ARGV[1], ARGV[2], tonumber(ARGV[3])

local is_replaced = true
local held = redis.call('HMGET', state, 'topic', 'log', 'epochs', 'clean_token', 'clean')
-- @include shared/log_fields
-- @include shared/share_begin
-- @include shared/entry_ids
-- @include shared/share_redis

if kind == 'redis' and read_group() then
  redis.call('XGROUP', 'DESTROY', stream, group)
end
return redis.call('HDEL', share, 'h:' .. group, 'r:' .. group, 'n:' .. group) > 0 and 1 or 0
