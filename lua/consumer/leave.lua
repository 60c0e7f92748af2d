#!lua flags=allow-oom
-- Removes members from a group of the consumer protocol, or notes that static ones will be back (KIP-848).
-- KEYS     group, members, deadlines, assignments
-- ARGV     channel of the group, and for each member its id ("": the holder of the instance id), its instance id ("" for
--          none), and "-1" if it leaves, "-2" if it will be back
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
  local row = epoch_row_of(member, redis.call('HGET', members, 'e:' .. member))
  local current = redis.call('HGET', assignments, 'c:' .. member)
  if current then
    release(member, owned_in(member, current, {'revoking'}))
    redis.call('HSET', assignments, 'c:' .. member, (string.gsub(current, '"revoking":.*}$', '"revoking":{}}')))
  end
  if is_stable(row) then
    stable = stable - 1
  end
  redis.call('HSET', members, 'e:' .. member, string.format(
    '{"epoch":-2,"previous":%d,"phase":"stable","by":0,"revision":%d}', row.epoch, row.revision + 1))
end

local function outcome(member, instance, epoch)
  if instance ~= '' then
    local holder = redis.call('HGET', members, 'i:' .. instance)
    if not holder then
      return 'UNKNOWN_MEMBER_ID'
    elseif member ~= '' and holder ~= member then
      return 'FENCED_INSTANCE_ID'
    end
    member = holder
  end
  if redis.call('HEXISTS', members, 'e:' .. member) == 0 then
    return 'UNKNOWN_MEMBER_ID'
  elseif epoch == '-2' then
    be_back(member)
  else
    remove(member)
  end
  return 'NONE'
end

local outcomes = {-1, 0, 0}
for at = first, #ARGV, 3 do
  outcomes[#outcomes + 1] = outcome(ARGV[at], ARGV[at + 1], ARGV[at + 2])
end
if announced then
  generation = generation + 1
end
finish()
outcomes[1], outcomes[2], outcomes[3] = due_at(), size, classic
return outcomes
