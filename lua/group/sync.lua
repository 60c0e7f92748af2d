#!lua
-- Takes the leader's assignments, or returns a member its own.
-- KEYS     1 group
--          2 members
--          3 deadlines
-- ARGV     1 channel of the group
--          2 member id
--          3 instance id ("" if it is not static)
--          4 generation
--          5 protocol type, as `=` and the name ("": not compared)
--          6 protocol, likewise
--          7 and on: for each assignment: the member's id; its bytes
-- Returns  {"SYNCED", when (ms, Redis' clock) something is due if that may be earlier than before (else -1), protocol type,
--          protocol, assignment}, or {"WAIT", ms until something is due (-1: nothing is)} if the leader has not brought
--          assignments yet
-- Errors   GROUP_ID_NOT_FOUND (a group of the consumer protocol with members, or a share group),
--          STALE_BROKER_EPOCH (shared/lease), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
--          INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS, KAFKA_STORAGE_ERROR (what is stored cannot be read),
--          OOM (shared/memory_is_full)
--
-- Until then the assignments of the last sync stay: they say what the members own if the group becomes one of the consumer
-- protocol (consumer/upgrade). Where memory is full all assignments together take no more than those of the last sync with
-- room (`assigned`, bytes), or than 1 KiB for each member: what a member has left goes to the others.

-- @include shared/lease
-- @include shared/memory_is_full

local group, members, deadlines = KEYS[1], KEYS[2], KEYS[3]
local channel, member, instance = ARGV[1], ARGV[2], ARGV[3]
-- @include shared/group_state
-- @include shared/group_steps

local refused = refusal(member, instance)
if refused then
  return redis.error_reply(refused .. ' the group has no such member')
elseif whole(generation) ~= ARGV[4] then
  return redis.error_reply('ILLEGAL_GENERATION the group is at generation ' .. whole(generation))
elseif (ARGV[5] ~= '' and ARGV[5] ~= '=' .. protocol_type) or (ARGV[6] ~= '' and ARGV[6] ~= '=' .. protocol) then
  return redis.error_reply('INCONSISTENT_GROUP_PROTOCOL the group is of type ' .. protocol_type .. ' with protocol '
    .. protocol)
elseif state == 'PreparingRebalance' then
  return redis.error_reply('REBALANCE_IN_PROGRESS the members must join again')
end

local bytes = 0 -- of all assignments
for at = 8, #ARGV, 2 do
  bytes = bytes + #ARGV[at]
end
if memory_is_full and member == leader and state == 'CompletingRebalance' then
  local bytes_max = tonumber(redis.call('HGET', group, 'assigned') or 0)
  if bytes > math.max(bytes_max, 1024 * redis.call('ZCARD', deadlines)) then
    return redis.error_reply('OOM memory is full, and the assignment would take more of it')
  end
end

local row, due = row_of(member), -1
if member == leader and state == 'CompletingRebalance' then
  each_row(redis.call('ZRANGEBYSCORE', deadlines, '+inf', '+inf'))
end
redis.call('HSET', members, 's:' .. member, whole(generation))
if state == 'CompletingRebalance' then
  redis.call('ZADD', deadlines, '+inf', member)
  if member ~= leader then
    return {'WAIT', due_in()}
  end
  local known, fields, old = {}, {}, {}
  for _, each in ipairs(redis.call('ZRANGE', deadlines, 0, -1)) do
    known[each] = true
    old[#old + 1] = 'a:' .. each
  end
  for at = 7, #ARGV, 2 do
    -- Members that have left meanwhile need none.
    if known[ARGV[at]] then
      fields[#fields + 1] = 'a:' .. ARGV[at]
      fields[#fields + 1] = ARGV[at + 1]
    end
  end
  in_thousands(old, function(...) redis.call('HDEL', members, ...) end)
  in_thousands(fields, function(...) redis.call('HSET', members, ...) end)
  if not memory_is_full then
    redis.call('HSET', group, 'assigned', whole(bytes))
  end
  state = 'Stable'
  unpark()
  finish()
  due = due_at()
else
  redis.call('ZADD', deadlines, 'XX', 'GT', whole(now_ms + row.session_ms), member)
end
return {'SYNCED', due, protocol_type, protocol, redis.call('HGET', members, 'a:' .. member) or ''}
