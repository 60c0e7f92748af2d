-- Adds partitions to a topic: replaces its row and creates the state of each, unless the row has changed since it was read.
-- KEYS     registry, changes; then for each new partition: state, producers, index, moving, clean:0, clean:1, stream
-- ARGV     topic name, topic id, row as it was read, new row, channel, most members of the change feed, "adopt" or "refuse"
--          (streams that exist already)
-- Returns  the epoch of the change; 0, with nothing done, if the row has changed
-- Errors   STALE_BROKER_EPOCH (shared/lease), UNKNOWN_TOPIC_OR_PARTITION, INVALID_CONFIG ("refuse", and a stream exists
--          already)

-- @include shared/lease

local registry, changes = KEYS[1], KEYS[2]
local name, topic_id, expected, row = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local channel, members_max, refuse_streams = ARGV[5], tonumber(ARGV[6]), ARGV[7] == 'refuse'
local first_key = 3

local held = redis.call('HGET', registry, name)
if not held then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION there is no topic ' .. name)
end
if held ~= expected then
  return 0
end
-- @include shared/new_partitions

local refused = refuse_streams and streams_refused(first_key)
if refused then
  return refused
end
-- @include shared/change_feed

local epoch = record_change(changes, name, members_max)
make_partitions(first_key, topic_id)
redis.call('HSET', registry, name, row)
redis.call('PUBLISH', channel, epoch)
return epoch
