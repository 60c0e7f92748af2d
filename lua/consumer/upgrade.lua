#!lua flags=allow-oom
-- Makes a classic group with members one of the consumer protocol, whose members all use the classic protocol (KIP-848).
-- KEYS     1 group
--          2 members
--          3 deadlines
--          4 assignments
-- ARGV     1 channel of the group
--          2 token of the caller (consumer/stage)
--          3 revision of the group as the caller has read it
-- Returns  1, or 0 if the group has changed or another caller has begun, and nothing is done
-- Errors   TRYAGAIN (shared/slot_stays), KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- Every member is stable in the group's generation, with its partitions; waiting ones join again. Ids that were given out
-- and have not joined are forgotten: in such a group any id may join. allow-oom: a rebalance must work when memory is full.

-- @include shared/clock

local group, members, deadlines, assignments = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, token, revision = ARGV[1], ARGV[2], ARGV[3]
-- @include shared/slot_stays
-- @include shared/consumer_state

if kind or (redis.call('HGET', group, 'revision') or '') ~= revision
  or redis.call('HGET', assignments, 'token') ~= token then
  return 0
end
local all = redis.call('ZRANGE', deadlines, 0, -1)
local gone, count = {}, 0
for start = 1, #all, 500 do
  local fields, rows, scores, old = {}, {}, {}, {}
  for at = start, math.min(start + 499, #all) do
    fields[#fields + 1] = 'm:' .. all[at]
  end
  for at, row in ipairs(redis.call('HMGET', members, unpack(fields))) do
    local member = all[start + at - 1]
    local session_ms = row and string.match(row, '"session_ms":(%d+)[,}]')
    if session_ms then
      count = count + 1
      rows[#rows + 1] = 'e:' .. member
      rows[#rows + 1] = string.format('{"epoch":%d,"previous":%d,"phase":"stable","by":0,"revision":1}', generation, generation)
      scores[#scores + 1] = whole(now_ms + tonumber(session_ms))
      scores[#scores + 1] = member
    else
      gone[#gone + 1] = member
    end
    for _, field in ipairs({'a:', 's:', 'w:'}) do
      old[#old + 1] = field .. member
    end
  end
  if rows[1] then
    redis.call('HSET', members, unpack(rows))
    redis.call('ZADD', deadlines, unpack(scores))
  end
  redis.call('HDEL', members, unpack(old))
end
for _, member in ipairs(gone) do
  redis.call('ZREM', deadlines, member)
end
redis.call('HDEL', assignments, 'token')
redis.call('HDEL', group, 'leader', 'protocol', 'assigned', 'deadline', 'extend_until', 'delay', 'added')
kind, assignment_epoch, size, stable, classic, announced = 'consumer', generation, count, count, count, true
finish()
return 1
