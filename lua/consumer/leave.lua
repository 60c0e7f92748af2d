#!lua flags=allow-oom
-- Removes members from a group of the consumer protocol or a share group, or notes that static ones will be back (KIP-848,
-- KIP-932).
-- KEYS     1 group
--          2 members
--          3 deadlines
--          4 assignments
-- ARGV     1 channel of the group
--          2 its type
--          3 and on: for each member: its id ("": the holder of the instance id); its instance id ("" for none); "-1"
--            if it leaves, "-2" if it will be back
-- Returns  {when (ms) something is due, -1 if nothing is, members left, members left that use the classic protocol, and for each
--          member "NONE", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", or "AGAIN": it had to free more partitions than is done at
--          once, or those before it had}
-- Errors   STALE_BROKER_EPOCH (shared/lease), GROUP_ID_NOT_FOUND, TRYAGAIN (shared/slot_stays), KAFKA_STORAGE_ERROR (what is
--          stored cannot be read)
--
-- Who will be back keeps its assignment until its session ends. allow-oom: what frees memory must work when there is none
-- left.

-- @include shared/lease

local group, members, deadlines, assignments = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, kind_asked, first = ARGV[1], ARGV[2], 3
-- @include shared/slot_stays
-- @include shared/consumer_state

if kind ~= kind_asked then
  return redis.error_reply('GROUP_ID_NOT_FOUND there is no such ' .. kind_asked .. ' group')
end

-- Whether that is done.
local function be_back(member)
  local found = member_of(member)
  local row, at = found.epoch_row, string.find(found.current, ',"revoking":', 1, true)
  local nothing = '{"assigned":{}'
  local revoking, others = first_of(nothing .. string.sub(found.current, at))
  release(member, revoking)
  redis.call('HSET', assignments, 'c:' .. member, string.sub(found.current, 1, at - 1)
    .. (others and string.sub(others, #nothing + 1) or ',"revoking":{}}'))
  if others then
    return false
  end
  if is_stable(row) then
    stable = stable - 1
  end
  redis.call('HSET', members, 'e:' .. member, string.format(
    '{"epoch":-2,"previous":%d,"phase":"stable","by":0,"revision":%d}', row.epoch, row.revision + 1))
  return true
end

-- The member that is named, or why there is none.
local function named(member, instance)
  if instance ~= '' then
    local holder = redis.call('HGET', members, 'i:' .. instance)
    if not holder then
      return nil, 'UNKNOWN_MEMBER_ID'
    elseif member ~= '' and holder ~= member then
      return nil, 'FENCED_INSTANCE_ID'
    end
    member = holder
  end
  return member_of(member) and member, 'UNKNOWN_MEMBER_ID'
end

local freed, last = 0, first
for at = first, #ARGV, 3 do
  if freed < freed_at_once then
    local member = named(ARGV[at], ARGV[at + 1]) -- reads all
    freed, last = freed + (member and #member_of(member).owned or 0), at
  end
end
local outcomes = {-1, 0, 0}
for at = first, #ARGV, 3 do
  local member, outcome = nil, 'AGAIN'
  if at <= last then
    member, outcome = named(ARGV[at], ARGV[at + 1])
  end
  if member then
    local leave = ARGV[at + 2] == '-2' and be_back or remove_some
    outcome = leave(member) and 'NONE' or 'AGAIN'
  end
  outcomes[#outcomes + 1] = outcome
end
if announced then
  generation = generation + 1
end
finish()
outcomes[1], outcomes[2], outcomes[3] = due_at(), size, classic
return outcomes
