#!lua
-- Has a share group begin at an offset of a partition, within its log, whatever it has in flight.
-- KEYS     1 stream
--          2 state
--          3 share
-- ARGV     1 topic id
--          2 group
--          3 offset sequence bits (0: dense ids)
--          4 the offset
--          5 "redis" if a part that is not there yet is to be a Redis group else "ranges"
--          6 ms of a lock
-- Returns  1
-- Errors   STALE_BROKER_EPOCH (shared/lease), UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state)
--
-- A Redis group is made again, without what it had pending: plain workers that wait in it are refused once (NOGROUP).

-- @include shared/lease
-- @include shared/whole_number

local stream, state, share = KEYS[1], KEYS[2], KEYS[3]
local topic_id, group, bits, to = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local wanted_kind, new_lock_ms = ARGV[5], tonumber(ARGV[6])

local is_replaced = true
local held = redis.call('HMGET', state, 'topic', 'log', 'epochs', 'clean_token', 'clean')
-- @include shared/log_fields
-- @include shared/share_begin
-- @include shared/entry_ids
-- @include shared/share_redis

to = math.min(math.max(to, log_start), log_end)
if begin_kind(wanted_kind) == 'redis' then
  if read_group() then
    redis.call('XGROUP', 'DESTROY', stream, group)
  end
  create_group(to)
  redis.call('HSET', share, 'h:' .. group, header_of(to, new_lock_ms, 0))
else
  redis.call('HSET', share, 'h:' .. group, string.format('ranges %d %d 0', to, to))
end
redis.call('HDEL', share, 'r:' .. group, 'n:' .. group)
return 1
