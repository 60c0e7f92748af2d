-- Creates a topic: its registry row, the state of every partition, the change feed, and the announcement.
-- KEYS     registry, changes; then for each partition: state, producers, index, moving, clean:0, clean:1, stream
-- ARGV     topic name, topic id, row (JSON), channel, most members of the change feed, "adopt" or "refuse"
-- Returns  the epoch of the change
-- Errors   TOPIC_ALREADY_EXISTS, INVALID_CONFIG (a stream is there already, and "refuse" is said)
--
-- In format record a stream that is there already is adopted as it is; in format batch its entries could be no records,
-- so it is refused. The side keys of a former topic of that name are replaced, for they speak of another topic id.

local registry, changes = KEYS[1], KEYS[2]
local name, topic_id, row = ARGV[1], ARGV[2], ARGV[3]
local channel, members_max = ARGV[4], tonumber(ARGV[5])
local refuse_streams = ARGV[6] == 'refuse'
local first_key, keys_per_partition = 3, 7

if redis.call('HEXISTS', registry, name) == 1 then
  return redis.error_reply('TOPIC_ALREADY_EXISTS Topic ' .. name .. ' already exists.')
end
if refuse_streams then
  for at = first_key, #KEYS, keys_per_partition do
    local stream = KEYS[at + keys_per_partition - 1]
    if redis.call('EXISTS', stream) == 1 then
      return redis.error_reply('INVALID_CONFIG ' .. stream .. ' is there already: only storage.format=record adopts it')
    end
  end
end
-- @include shared/change_feed

local epoch = record_change(changes, name, members_max)
for at = first_key, #KEYS, keys_per_partition do
  redis.call('UNLINK', unpack(KEYS, at, at + keys_per_partition - 2))
  redis.call('HSET', KEYS[at], 'topic', topic_id, 'next', '0', 'start', '0', 'bytes', '0', 'max_timestamp', '-1')
end
redis.call('HSET', registry, name, row)
redis.call('PUBLISH', channel, epoch)
return epoch
