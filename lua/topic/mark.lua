#!lua flags=allow-oom
-- Marks a topic as deleted, so that no client finds it, and fences the logs of some of its partitions.
-- KEYS     registry, changes; then for each partition to fence: state
-- ARGV     topic name, topic id, row as it was read, the same row marked, channel, most members of the change feed
-- Returns  1; 0, with nothing done, if the row has changed
-- Errors   STALE_BROKER_EPOCH (shared/lease)
--
-- If the row is marked already, by an earlier step, partitions are fenced only. Fenced means that the state has a topic id
-- that no request has: appends, commits, reads and steps of the keeper are refused.
-- allow-oom: what frees memory must work when there is none left.

-- @include shared/lease

local registry, changes = KEYS[1], KEYS[2]
local name, topic_id, expected, marked = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local channel, members_max = ARGV[5], tonumber(ARGV[6])
local first_state = 3

local held = redis.call('HGET', registry, name)
if held ~= expected and held ~= marked then
  return 0
end
-- @include shared/change_feed

if held ~= marked then
  local epoch = record_change(changes, name, members_max)
  redis.call('HSET', registry, name, marked)
  redis.call('PUBLISH', channel, epoch)
end
for at = first_state, #KEYS do
  -- A partition without a state was deleted before.
  if redis.call('EXISTS', KEYS[at]) == 1 then
    local fenced = redis.pcall('HSET', KEYS[at], 'topic', 'deleted ' .. topic_id)
    if type(fenced) == 'table' and fenced.err then
      -- Of another type: no log. With a state of its own its other keys are deleted like those of others.
      redis.call('UNLINK', KEYS[at])
      redis.call('HSET', KEYS[at], 'topic', 'deleted ' .. topic_id)
    end
  end
end
return 1
