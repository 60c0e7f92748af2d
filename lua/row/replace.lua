#!lua
-- Replaces a row of a hash that all workers follow (topics, settings, ACLs, users, quotas, features) unless it has changed
-- since it was read.
-- KEYS     1 the hash
--          2 changes
-- ARGV     1 name of the row
--          2 row as it was read, '' if there was none
--          3 new row, '' for none
--          4 member of the change feed
--          5 channel
--          6 most members of the change feed
--          7 member for the row alone, '' for none
-- Returns  the epoch of the change; 0, with nothing done, if the row has changed
-- Errors   STALE_BROKER_EPOCH (shared/lease), OOM (shared/memory_is_full)
--
-- The feed is that of the topics, whose members are their names: topics inherit the settings of brokers, and one channel has every worker refresh.
-- Where memory is full a row can be removed, and a small one gets a setting more, or a mark; there come no more of them than
-- 100. A shorter retention is what frees some, and a right must still be revoked.

-- @include shared/lease
-- @include shared/memory_is_full

local rows, changes = KEYS[1], KEYS[2]
local name, expected, row = ARGV[1], ARGV[2], ARGV[3]
local member, channel, members_max, row_member = ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7]

if (redis.call('HGET', rows, name) or '') ~= expected then
  return 0
elseif memory_is_full and (#row > math.max(#expected, 1024) + 64
    or row ~= '' and expected == '' and redis.call('HLEN', rows) >= 100) then
  return redis.error_reply('OOM memory is full, and row ' .. name .. ' would take more of it')
end
-- @include shared/change_feed

if row_member ~= '' then
  record_change(changes, row_member, members_max)
end
local epoch = record_change(changes, member, members_max)
if row == '' then
  redis.call('HDEL', rows, name)
else
  redis.call('HSET', rows, name, row)
end
redis.call('SPUBLISH', channel, epoch)
return epoch
