#!lua flags=allow-oom
-- Removes members from a group.
-- KEYS     1 group
--          2 members
--          3 deadlines
-- ARGV     1 channel of the group
--          2 and on: for each member: its id ("": the holder of the instance id); its instance id ("" for none)
-- Returns  {when (ms, Redis' clock) something is due in the group, -1 if nothing is, and for each member "NONE",
--          "UNKNOWN_MEMBER_ID" or "FENCED_INSTANCE_ID"}
-- Errors   GROUP_ID_NOT_FOUND (a group of the consumer protocol with members, or a share group),
--          STALE_BROKER_EPOCH (shared/lease), TRYAGAIN (shared/slot_stays), KAFKA_STORAGE_ERROR (what is stored
--          cannot be read)
--
-- allow-oom: what frees memory must work when there is none left.

-- @include shared/lease

local group, members, deadlines = KEYS[1], KEYS[2], KEYS[3]
local channel = ARGV[1]
-- @include shared/group_state
-- @include shared/slot_stays
-- @include shared/group_steps

local function named(member, instance)
  if instance ~= '' and member == '' then
    return redis.call('HGET', members, 'i:' .. instance) or ''
  end
  return member
end

local first, names = 2, {}
for at = first, #ARGV, 2 do
  names[#names + 1] = named(ARGV[at], ARGV[at + 1])
end
each_row(names)
read_ahead(names)

local function leave(member, instance)
  member = named(member, instance)
  if instance == '' and redis.call('HEXISTS', members, 'w:' .. member) == 1 then
    remove(member)
    return 'NONE'
  end
  local refused = refusal(member, instance)
  if not refused then
    remove(member)
  end
  return refused or 'NONE'
end

local outcomes = {-1}
for at = first, #ARGV, 2 do
  outcomes[#outcomes + 1] = leave(ARGV[at], ARGV[at + 1])
end
if announced then
  after_removal()
  finish()
  outcomes[1] = due_at()
end
return outcomes
