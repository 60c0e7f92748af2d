#!lua flags=allow-oom
-- Puts another row of a topic in the place of the one that was read, unless that is another one by now.
-- KEYS     registry, changes
-- ARGV     topic name, row as it was read, new row, channel, most members of the change feed
-- Returns  the epoch of the change; 0 where the row is another one by now, and nothing is done
-- Errors   UNKNOWN_TOPIC_OR_PARTITION
--
-- allow-oom: where memory is full, a shorter retention is what gives some back, and a row takes no more than the last.

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
