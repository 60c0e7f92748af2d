#!lua flags=allow-oom
-- Removes members from a group of the consumer protocol, or notes that static ones will be back (KIP-848).
-- KEYS     group, members, deadlines, assignments
-- ARGV     channel of the group, and for each member its id ("": the holder of the instance id), its instance id ("" for
--          none), and "-1" if it leaves, "-2" if it will be back, "-3" if it leaves by the classic protocol: an id is then that of
--          a member which uses that
-- Returns  {when (ms) something is due, -1 if nothing is, members left, members left that use the classic protocol, and for each
--          member "NONE", "UNKNOWN_MEMBER_ID" or "FENCED_INSTANCE_ID"}
-- Errors   STALE_BROKER_EPOCH (shared/lease), GROUP_ID_NOT_FOUND, TRYAGAIN (shared/slot_stays), KAFKA_STORAGE_ERROR (what is
--          stored cannot be read)
--
-- Who will be back keeps its assignment until its session ends. allow-oom: what frees memory must work when there is none
-- left.

-- @include shared/lease

local group, members, deadlines, assignments = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, first = ARGV[1], 2
-- @include shared/slot_stays
-- @include shared/consumer_state

if kind ~= 'consumer' then
  return redis.error_reply('GROUP_ID_NOT_FOUND there is no such group of the consumer protocol')
end

local function be_back(member)
  local found = member_of(member)
  local row = found.epoch_row
  release(member, found.revoking)
  if found.current then
    redis.call('HSET', assignments, 'c:' .. member, (string.gsub(found.current, '"revoking":.*}$', '"revoking":{}}')))
  end
  if is_stable(row) then
    stable = stable - 1
  end
  redis.call('HSET', members, 'e:' .. member, string.format(
    '{"epoch":-2,"previous":%d,"phase":"stable","by":0,"revision":%d}', row.epoch, row.revision + 1))
end

-- The member that is named, or why there is none.
local function named(member, instance, how)
  local is_by_id = member ~= ''
  if instance ~= '' then
    local holder = redis.call('HGET', members, 'i:' .. instance)
    if not holder then
      return nil, 'UNKNOWN_MEMBER_ID'
    elseif member ~= '' and holder ~= member then
      return nil, 'FENCED_INSTANCE_ID'
    end
    member = holder
  end
  local found = member_of(member)
  if found and is_by_id and how == '-3' and #found.row.protocols == 0 then
    return nil, 'UNKNOWN_MEMBER_ID'
  end
  return found and member, 'UNKNOWN_MEMBER_ID'
end

for at = first, #ARGV, 3 do
  named(ARGV[at], ARGV[at + 1], ARGV[at + 2]) -- reads all
end
local outcomes = {-1, 0, 0}
for at = first, #ARGV, 3 do
  local member, refused = named(ARGV[at], ARGV[at + 1], ARGV[at + 2])
  if member and ARGV[at + 2] == '-2' then
    be_back(member)
  elseif member then
    remove(member)
  end
  outcomes[#outcomes + 1] = member and 'NONE' or refused
end
if announced then
  generation = generation + 1
end
finish()
outcomes[1], outcomes[2], outcomes[3] = due_at(), size, classic
return outcomes
