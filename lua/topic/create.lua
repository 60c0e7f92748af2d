-- Writes the row of a topic that is being created: no client finds it yet. The caller may create its partitions.
-- KEYS     1 registry
--          2 changes
-- ARGV     1 topic name
--          2 row (JSON) without a claim
--          3 ms for which the caller may create the partitions
--          4 most members of the change feed
--          5 epoch of the registry in which no topic was found whose name collides with this one
-- Returns  the row as it was written, with its claim; 0 if the feed no longer has the changes since that epoch: read the
--          registry again
-- Errors   STALE_BROKER_EPOCH (shared/lease), TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION (collides with a topic
--          created since)
--
-- Names collide that differ only in `.` and `_`: metrics have no dots, so both topics would be one there, as in Kafka.
-- Nothing is published: workers learn of the topic when it is live. topic/claim says what a claim is.

-- @include shared/lease

local registry, changes = KEYS[1], KEYS[2]
local name, row, claim_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local members_max, known_epoch = tonumber(ARGV[4]), ARGV[5]

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
-- @include shared/change_feed

local epoch = record_change(changes, name, members_max)
local claimed = string.sub(row, 1, -2) .. string.format(',"claim":%s,"claim_until":%d}', epoch, now_ms + claim_ms)
redis.call('HSET', registry, name, claimed)
return claimed
