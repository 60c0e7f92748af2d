-- Answers a member that waits in a join or sync. Reads only.
-- KEYS     1 group
--          2 members
--          3 deadlines
-- ARGV     1 "join" or "sync"
--          2 member id
--          3 instance id ("" if it is not static)
--          4 generation; for a join the one before it
-- Returns  {"WAIT", ms until something is due (-1: nothing is)},
--          {"JOINED", when something is due, member id, generation, protocol type, protocol, leader, 0, and for the leader of each
--          member: its id, its instance id or "", its protocols} or {"SYNCED", -1, protocol type, protocol, assignment}
-- Errors   GROUP_ID_NOT_FOUND (shared/group_state; never here),
--          UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS, KAFKA_STORAGE_ERROR

-- @include shared/clock

local group, members, deadlines = KEYS[1], KEYS[2], KEYS[3]
local what, member, instance, asked = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
if redis.call('HGET', group, 'type') then
  return redis.error_reply('REBALANCE_IN_PROGRESS the group uses another protocol now')
end
-- @include shared/group_state
-- @include shared/group_reply

local refused = refusal(member, instance)
if refused then
  return redis.error_reply(refused .. ' the member is no longer in the group')
end
if what == 'join' then
  if state == 'PreparingRebalance' and redis.call('ZSCORE', deadlines, member) == 'inf' then
    return {'WAIT', due_in()}
  end
  if generation == asked then
    return redis.error_reply('REBALANCE_IN_PROGRESS the members must join again')
  end
  return joined(member, false)
end
if generation ~= asked or state == 'PreparingRebalance' then
  return redis.error_reply('REBALANCE_IN_PROGRESS the members must join again')
elseif state == 'Stable' then
  return {'SYNCED', -1, protocol_type, protocol, redis.call('HGET', members, 'a:' .. member) or ''}
end
return {'WAIT', due_in()}
