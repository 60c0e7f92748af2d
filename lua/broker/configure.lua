#!lua flags=allow-oom
-- Puts other dynamic settings of a broker, or of all, in the place of those that were read, unless they are others by now.
-- KEYS     broker configs, changes
-- ARGV     whose: a broker's id, or `default` for all; row as it was read, '' where there was none; new row, '' for none;
--          member of the change feed; channel; most members of the change feed
-- Returns  the epoch of the change; 0 where the row is another one by now, and nothing is done
-- Errors   none
--
-- The feed is that of the topics, for topics get from brokers what is not set on them: who follows it reads both anew.
-- allow-oom: where memory is full, a shorter retention is what gives some back.

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
