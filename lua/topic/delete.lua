#!lua flags=allow-oom
-- Deletes a topic: its registry row, the streams and side keys of all partitions, and the offsets that groups have
-- committed for them; adds the change to the feed and wakes waiting fetches.
-- KEYS     registry, changes; then for each partition: stream, state, producers, index, moving, clean:0, clean:1; then the
--          committed offsets of each group
-- ARGV     topic name, topic id, channel of the registry, most members of the change feed, number of groups; then the
--          channel of each partition
-- Returns  {1, epoch of the change}; or {0, number of partitions}, with nothing done, if the keys are not those of all
--          partitions
-- Errors   STALE_BROKER_EPOCH (shared/lease), UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed row)
--
-- The caller has checked that the logs are small: their memory is freed here, and not by another thread of Redis after
-- UNLINK, which would keep the allocator locked meanwhile (see clear.lua).
-- allow-oom: what frees memory must work when there is none left, though the change feed takes some first.

-- @include shared/lease

local registry, changes = KEYS[1], KEYS[2]
local name, topic_id, channel, members_max = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local group_count = tonumber(ARGV[5])
local first_key, keys_per_partition, first_channel = 3, 7, 6
local last_key = #KEYS - group_count

local row = redis.call('HGET', registry, name)
if not row then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION there is no topic ' .. name)
end
local readable, topic = pcall(cjson.decode, row)
if not readable or type(topic) ~= 'table' or type(topic.partitions) ~= 'number' then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. registry .. ': the row of ' .. name .. ' is malformed')
end
if topic.id ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION topic ' .. name .. ' does not have the id ' .. topic_id)
end
local partitions = (last_key - first_key + 1) / keys_per_partition
if topic.partitions ~= partitions then
  return {0, string.format('%d', topic.partitions)}
end
-- @include shared/change_feed

local epoch = record_change(changes, name, members_max)
redis.call('HDEL', registry, name)
for at = last_key + 1, #KEYS do
  for stream = first_key, last_key, keys_per_partition do
    -- A key of another type holds no commits, and does not stop the deletion.
    redis.pcall('HDEL', KEYS[at], KEYS[stream])
  end
end
for at = first_key, last_key, keys_per_partition do
  -- The stream, moving, and both compacted streams; a key of another type is deleted as it is.
  for _, stream in ipairs({KEYS[at], KEYS[at + 4], KEYS[at + 5], KEYS[at + 6]}) do
    redis.pcall('XTRIM', stream, 'MAXLEN', '0')
  end
  redis.call('UNLINK', unpack(KEYS, at, at + keys_per_partition - 1))
end
redis.call('PUBLISH', channel, epoch)
for at = first_channel, #ARGV do
  -- No offset: a fetch that waits on the partition reads again, and finds that it is gone.
  redis.call('PUBLISH', ARGV[at], '-1')
end
return {1, epoch}
