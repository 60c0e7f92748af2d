#!lua flags=allow-oom
-- Replaces the dynamic settings of a broker, or of all, unless they have changed since they were read.
-- KEYS     broker configs, changes
-- ARGV     whose: a broker's id, or `default` for all; row as it was read, '' if there was none; new row, '' for none;
--          member of the change feed; channel; most members of the change feed
-- Returns  the epoch of the change; 0, with nothing done, if the row has changed
-- Errors   STALE_BROKER_EPOCH (shared/lease)
--
-- The feed is that of the topics, which inherit from brokers what is not set on them: its followers read both again.
-- allow-oom: when memory is full, a shorter retention is what frees some.

-- @include shared/lease

local configs, changes = KEYS[1], KEYS[2]
local whose, expected, row = ARGV[1], ARGV[2], ARGV[3]
local member, channel, members_max = ARGV[4], ARGV[5], tonumber(ARGV[6])

if (redis.call('HGET', configs, whose) or '') ~= expected then
  return 0
end
-- @include shared/change_feed

local epoch = record_change(changes, member, members_max)
if row == '' then
  redis.call('HDEL', configs, whose)
else
  redis.call('HSET', configs, whose, row)
end
redis.call('PUBLISH', channel, epoch)
return epoch
