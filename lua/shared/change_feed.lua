-- The change feed of the topic registry: a sorted set, topic name -> epoch of its last change, deletions included.
-- The oldest members are dropped beyond `members_max`; then the member '', which is no topic's name, carries the highest
-- epoch dropped, and a reader that is older than that reads the whole registry again.
local function record_change(changes, name, members_max)
  local newest = redis.call('ZREVRANGE', changes, 0, 0, 'WITHSCORES')
  local epoch = string.format('%d', (tonumber(newest[2]) or 0) + 1)
  redis.call('ZADD', changes, epoch, name)
  local dropped_before = redis.call('ZSCORE', changes, '')
  local surplus = redis.call('ZCARD', changes) - members_max - (dropped_before and 1 or 0)
  if surplus > 0 then
    redis.call('ZREM', changes, '')
    local dropped = redis.call('ZPOPMIN', changes, surplus)
    redis.call('ZADD', changes, dropped[#dropped], '')
  end
  return epoch
end
