#!lua flags=allow-oom
-- Renews the session of a member, and says whether it has to join again.
-- KEYS     1 group
--          2 members
--          3 deadlines
-- ARGV     1 member id
--          2 instance id ("" if it is not static)
--          3 generation
-- Returns  1
-- Errors   GROUP_ID_NOT_FOUND (a group of the consumer protocol with members, or a share group),
--          STALE_BROKER_EPOCH (shared/lease), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
--          REBALANCE_IN_PROGRESS (the session is renewed), KAFKA_STORAGE_ERROR (a row that cannot be read)
--
-- The group's size makes no difference. A member whose request is parked has no deadline, and gets none here (GT).
-- allow-oom: consumers go on when memory is full, and a renewed session takes none.

-- @include shared/lease

local group, members, deadlines = KEYS[1], KEYS[2], KEYS[3]
local member, instance = ARGV[1], ARGV[2]

local fields = redis.call('HMGET', members, 'm:' .. member, 'i:' .. instance)
if instance ~= '' then
  if not fields[2] then
    return redis.error_reply('UNKNOWN_MEMBER_ID no member has this instance id')
  elseif fields[2] ~= member then
    return redis.error_reply('FENCED_INSTANCE_ID another member has this instance id now')
  end
end
if not fields[1] then
  return redis.error_reply('UNKNOWN_MEMBER_ID the group has no such member')
end
local session_ms = string.match(fields[1], '"session_ms":(%d+)[,}]')
if not session_ms then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. members .. ': the row of member ' .. member .. ' is malformed')
end
local stored = redis.call('HMGET', group, 'state', 'generation', 'type')
if stored[3] then
  return redis.error_reply('GROUP_ID_NOT_FOUND the group is no classic group')
end
if stored[2] ~= ARGV[3] then
  return redis.error_reply('ILLEGAL_GENERATION the group is at generation ' .. tostring(stored[2]))
end
redis.call('ZADD', deadlines, 'XX', 'GT', string.format('%d', now_ms + tonumber(session_ms)), member)
if stored[1] == 'PreparingRebalance' then
  return redis.error_reply('REBALANCE_IN_PROGRESS the members must join again')
end
return 1
