#!lua flags=allow-oom
-- Replaces the row of a topic, unless it has changed since it was read.
-- KEYS     registry, changes
-- ARGV     topic name, row as it was read, new row, channel, most members of the change feed
-- Returns  the epoch of the change; 0, with nothing done, if the row has changed
-- Errors   STALE_BROKER_EPOCH (shared/lease), UNKNOWN_TOPIC_OR_PARTITION
--
-- allow-oom: when memory is full, a shorter retention is what frees some, and a row takes no more than the last.

-- @include shared/lease

local registry, changes = KEYS[1], KEYS[2]
local name, expected, row, channel, members_max = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local held = redis.call('HGET', registry, name)
if not held then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION there is no topic ' .. name)
end
if held ~= expected then
  return 0
end
-- @include shared/change_feed

local epoch = record_change(changes, name, members_max)
redis.call('HSET', registry, name, row)
redis.call('PUBLISH', channel, epoch)
return epoch
