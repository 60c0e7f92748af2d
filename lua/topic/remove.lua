#!lua flags=allow-oom
-- Deletes the row of a topic that is marked as deleted, when everything else of it is deleted.
-- KEYS     registry, changes
-- ARGV     topic name, the row marked as deleted, channel, most members of the change feed
-- Returns  1; 0, with nothing done, if the row has changed
-- Errors   none
--
-- allow-oom: what frees memory must work when there is none left.

local registry, changes = KEYS[1], KEYS[2]
local name, marked, channel, members_max = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

if redis.call('HGET', registry, name) ~= marked then
  return 0
end
-- @include shared/change_feed

local epoch = record_change(changes, name, members_max)
redis.call('HDEL', registry, name)
redis.call('PUBLISH', channel, epoch)
return 1
