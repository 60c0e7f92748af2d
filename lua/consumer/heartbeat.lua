#!lua flags=allow-oom
-- Renews the session of a member that reports nothing new, and says whether there is something for it to do (KIP-848,
-- KIP-932, KIP-1071).
-- KEYS     1 group
--          2 members
--          3 deadlines
-- ARGV     1 type of the group
--          2 member id
--          3 instance id ("" if it gave none)
--          4 member epoch
--          5 session timeout (ms)
--          6 epoch of the endpoints of a streams group that the member knows of ("": it does not matter)
-- Returns  1 if it has all that it is to have; 0 if the caller has to look closer (its session is not renewed)
-- Errors   STALE_BROKER_EPOCH (shared/lease), GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
--          FENCED_MEMBER_EPOCH, KAFKA_STORAGE_ERROR (a row that cannot be read)
--
-- Neither the group's size nor that of the assignment makes a difference. allow-oom: consumers go on when memory is full,
-- and a renewed session takes none.

-- @include shared/lease

local group, members, deadlines = KEYS[1], KEYS[2], KEYS[3]
local kind_asked, member, instance, epoch, session_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local endpoints = ARGV[6]

local stored = redis.call('HMGET', group, 'type', 'generation', 'assignment_epoch', 'endpoints')
if stored[1] ~= kind_asked then
  return redis.error_reply('GROUP_ID_NOT_FOUND there is no such ' .. kind_asked .. ' group')
end
local rows = redis.call('HMGET', members, 'e:' .. member, 'i:' .. instance)
if instance ~= '' and rows[2] and rows[2] ~= member then
  return redis.error_reply('FENCED_INSTANCE_ID another member has this instance id now')
elseif not rows[1] or instance ~= '' and not rows[2] then
  return redis.error_reply('UNKNOWN_MEMBER_ID the group has no such member')
end
local known, previous, phase = string.match(rows[1], '^{"epoch":(%-?%d+),"previous":(%-?%d+),"phase":"(%l+)",')
if not known then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. members .. ': the row of member ' .. member .. ' is malformed')
end
if epoch ~= tonumber(known) then
  if epoch == tonumber(previous) and epoch < tonumber(known) then
    return 0 -- the response with its new epoch may be lost: what it owns decides
  end
  return redis.error_reply('FENCED_MEMBER_EPOCH the member has epoch ' .. known .. ', not ' .. ARGV[4])
end
local has_ended = kind_asked == 'share' and tonumber(redis.call('ZSCORE', deadlines, member) or now_ms) < now_ms
if has_ended or phase ~= 'stable' or known ~= stored[3] or stored[2] ~= stored[3]
  or endpoints ~= '' and endpoints ~= (stored[4] or '0') then
  return 0
end
redis.call('ZADD', deadlines, 'XX', 'GT', string.format('%d', now_ms + session_ms), member)
return 1
