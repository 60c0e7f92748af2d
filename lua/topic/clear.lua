#!lua flags=allow-oom
-- Removes logs and side keys of some partitions of a topic that is marked as deleted, and tells who waits. One bounded step.
-- KEYS     for each partition: state, stream, producers, index, moving, clean:0, clean:1
-- ARGV     topic id; then the channel of each partition
-- Returns  number of partitions that were removed
-- Errors   none
--
-- The state says whose the partition is: one that belongs to another topic id, which was made anew meanwhile, is left
-- alone, and one without a state was removed before. All keys of a partition lie in one slot of Redis Cluster.
-- allow-oom: what gives memory back must work where there is none left.

local topic_id = ARGV[1]
local keys_per_partition, first_channel = 7, 2

local removed = 0
for at = 1, #KEYS, keys_per_partition do
  local owner = redis.pcall('HGET', KEYS[at], 'topic')
  if owner == topic_id or owner == 'deleted ' .. topic_id then
    redis.call('UNLINK', unpack(KEYS, at, at + keys_per_partition - 1))
    -- No offset: whoever is parked on the partition reads again, and finds that it is gone.
    redis.call('PUBLISH', ARGV[first_channel + (at - 1) / keys_per_partition], '-1')
    removed = removed + 1
  end
end
return removed
