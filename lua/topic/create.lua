-- Creates a topic: its registry row and the state of every partition; adds the change to the feed and publishes it.
-- KEYS     registry, changes; then for each partition: state, producers, index, moving, clean:0, clean:1, stream
-- ARGV     topic name, topic id, row (JSON), channel, most members of the change feed, "adopt" or "refuse" (streams that
--          exist already), epoch of the registry in which no topic was found whose name collides with this one
-- Returns  the epoch of the change; 0 if the feed no longer has the changes since that epoch: read the registry again
-- Errors   STALE_BROKER_EPOCH (shared/lease), TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION (collides with a topic
--          created since), INVALID_CONFIG ("refuse", and a stream exists already)
--
-- Names collide that differ only in `.` and `_`: metrics have no dots, so both topics would be one there, as in Kafka.
-- In format record a stream that exists already is adopted as it is; in format batch its entries could be no records, so
-- it is refused. The side keys of a former topic of that name are replaced, for they belong to another topic id.

-- @include shared/lease

local registry, changes = KEYS[1], KEYS[2]
local name, topic_id, row = ARGV[1], ARGV[2], ARGV[3]
local channel, members_max = ARGV[4], tonumber(ARGV[5])
local refuse_streams, known_epoch = ARGV[6] == 'refuse', ARGV[7]
local first_key = 3

if redis.call('HEXISTS', registry, name) == 1 then
  return redis.error_reply('TOPIC_ALREADY_EXISTS Topic ' .. name .. ' already exists.')
end

local function without_dots(text)
  return (string.gsub(text, '%.', '_'))
end

if string.find(name, '[._]') then
  local newest = redis.call('ZREVRANGE', changes, 0, 0, 'WITHSCORES')[2] or '0'
  local dropped = redis.call('ZSCORE', changes, '') or '0'
  if tonumber(newest) < tonumber(known_epoch) or tonumber(dropped) > tonumber(known_epoch) then
    return 0
  end
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', changes, '(' .. known_epoch, '+inf')) do
    if other ~= name and without_dots(other) == without_dots(name) then
      local readable, topic = pcall(cjson.decode, redis.call('HGET', registry, other) or '')
      if readable and type(topic) == 'table' and topic.state ~= 'deleting' then
        return redis.error_reply(
          'INVALID_TOPIC_EXCEPTION Topic \'' .. name .. '\' collides with existing topic: ' .. other)
      end
    end
  end
end
-- @include shared/new_partitions

local refused = refuse_streams and streams_refused(first_key)
if refused then
  return refused
end
-- @include shared/change_feed

local epoch = record_change(changes, name, members_max)
make_partitions(first_key, topic_id)
redis.call('HSET', registry, name, row)
redis.call('PUBLISH', channel, epoch)
return epoch
