#!lua
-- Writes a member of a group of the consumer protocol (KIP-848) or of a share group (KIP-932), if neither it nor the target
-- assignment has changed since the caller read them. Creates the group, and makes an empty classic one a group of the consumer
-- protocol; nothing that exists becomes a share group, nor a share group anything else.
-- KEYS     1 group
--          2 members
--          3 deadlines
--          4 assignments
-- ARGV     1 channel of the group
--          2 its type
--          3 group id
--          4 when it was listed (shared/listed)
--          5 member id
--          6 its epoch row as read ("": it is no member)
--          7 instance id ("" for none)
--          8 id of the member that it replaces ("": none)
--          9 epoch row of that member ("": none)
--          10 its new row ("": unchanged)
--          11 its protocols as a classic member ("" for none)
--          12 new epoch
--          13 new previous epoch
--          14 new phase
--          15 ms until it must have done its part ("0": nothing to do, "": unchanged)
--          16 new assignment row ("": unchanged)
--          17 session timeout (ms)
--          18 1 to begin a new group epoch (else 0)
--          19 most members
--          20 assignment epoch as read
--          21 number of partitions that it frees
--          22 and on: the fields of the freed partitions; then the fields of the partitions it gets
-- Returns  {"UNLISTED", now (ms)} if it would create the group and it is not listed: nothing is done. {0, -1, group epoch} if
--          something has changed, and nothing is done. {1, when (ms) something is due, group epoch,
--          the member's new epoch row}
-- Errors   STALE_BROKER_EPOCH (shared/lease), GROUP_MAX_SIZE_REACHED, TRYAGAIN (shared/slot_stays), KAFKA_STORAGE_ERROR (what is stored
--          cannot be read), OOM (shared/memory_is_full)
--
-- A partition has one owner until it reports that it has revoked it: a caller that wants an owned partition is refused.
-- Where memory is full the members of a group read on, and a static one restarts; nobody else joins.

-- @include shared/lease
-- @include shared/memory_is_full

local group, members, deadlines, assignments = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, kind_asked, group_id, listed_at = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local member, epoch_row_read, instance, replaced, replaced_row = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local row_text, protocols, epoch, previous, phase = ARGV[10], ARGV[11], tonumber(ARGV[12]), ARGV[13], ARGV[14]
local by_ms, current, session_ms = ARGV[15], ARGV[16], tonumber(ARGV[17])
local bumps, size_max, assignment_epoch_read = ARGV[18] == '1', tonumber(ARGV[19]), tonumber(ARGV[20])
local first_released, first_acquired = 22, 22 + tonumber(ARGV[21])
-- @include shared/listed
-- @include shared/slot_stays
-- @include shared/consumer_state

local is_new_group = kind ~= kind_asked
if is_new_group then
  if state_before and (state_before ~= 'Empty' or kind or kind_asked == 'share') then
    return {0, -1, generation}
  elseif not state_before and not is_listed(listed_at) then
    return {'UNLISTED', now_ms}
  end
  kind, assignment_epoch, size, stable, classic = kind_asked, generation, 0, 0, 0
end
local function epoch_row_in(name)
  return not is_new_group and redis.call('HGET', members, 'e:' .. name) or ''
end
if assignment_epoch ~= assignment_epoch_read or epoch_row_in(member) ~= epoch_row_read
  or replaced ~= '' and epoch_row_in(replaced) ~= replaced_row then
  return {0, -1, generation}
end
local holder = not is_new_group and instance ~= '' and redis.call('HGET', members, 'i:' .. instance)
if holder and holder ~= member and holder ~= replaced and epoch_row_in(holder) ~= '' then
  return {0, -1, generation} -- another one has joined with this instance id
end
local acquired = {}
for at = first_acquired, #ARGV do
  acquired[#acquired + 1] = ARGV[at]
end
for start = 1, #acquired, 1000 do
  local owners = redis.call('HMGET', assignments, unpack(acquired, start, math.min(start + 999, #acquired)))
  for _, owner in ipairs(is_new_group and {} or owners) do
    if owner and owner ~= member and owner ~= replaced then
      return {0, -1, generation}
    end
  end
end
local before = epoch_row_read ~= '' and epoch_row_of(member, epoch_row_read)
local row = row_text ~= '' and row_of(member, row_text)
local old_text = row and before and redis.call('HGET', members, 'm:' .. member)
local old_row = old_text and row_of(member, old_text)
if replaced ~= '' then
  member_of(replaced)
  member_of(member)
end
local is_new = not before and replaced == ''
if is_new and size >= size_max then
  return redis.error_reply('GROUP_MAX_SIZE_REACHED group ' .. group_id .. ' has ' .. whole(size) .. ' members already')
end

-- What a member may take where memory is full, however little it had, besides its target: what it owns stands in its row.
local SMALL = 4096
if memory_is_full then
  local had = before and member or replaced
  local held = is_new and {} or redis.call('HMGET', members, 'm:' .. had, 'p:' .. had)
  local target = is_new and '' or redis.call('HGET', assignments, 't:' .. had) or ''
  local bytes_max = math.max(#(held[1] or '') + #(held[2] or ''), SMALL + 2 * #target)
  if is_new or #row_text + #protocols > bytes_max then
    return redis.error_reply('OOM memory is full, and the member would take more of it')
  end
end

if is_new_group then
  redis.call('UNLINK', members, deadlines, assignments)
  redis.call('HDEL', group, 'leader', 'protocol', 'assigned', 'deadline', 'extend_until', 'delay', 'added')
end
if replaced ~= '' then
  local target = redis.call('HGET', assignments, 't:' .. replaced)
  remove(replaced)
  if before then
    -- It was a member without this instance id, and gives up what it had.
    remove(member)
    before, old_row = {by = 0, revision = before.revision}, nil
  end
  if target then
    redis.call('HSET', assignments, 't:' .. member, target)
  end
end
if is_new or replaced ~= '' then
  size, announced = size + 1, true
end
if before and is_stable(before) then
  stable = stable - 1
end
local by = before and before.by or 0
if by_ms == '0' then
  by = 0
elseif by_ms ~= '' then
  by = now_ms + tonumber(by_ms)
end
local revision = before and before.revision + 1 or 1
local fields = {'e:' .. member, string.format('{"epoch":%d,"previous":%d,"phase":"%s","by":%d,"revision":%d}', epoch,
  tonumber(previous), phase, by, revision)}
if is_stable({phase = phase, epoch = epoch}) then
  stable = stable + 1
end
if row then
  classic = classic + (old_row and count_protocols(old_row, -1) or 0) + count_protocols(row, 1)
  fields[3], fields[4] = 'm:' .. member, row_text
  if protocols ~= '' then
    fields[5], fields[6] = 'p:' .. member, protocols
  else
    redis.call('HDEL', members, 'p:' .. member)
  end
end
redis.call('HSET', members, unpack(fields))
if instance ~= '' then
  redis.call('HSET', members, 'i:' .. instance, member)
end
if old_row and old_row.instance ~= row.instance and redis.call('HGET', members, 'i:' .. old_row.instance) == member then
  redis.call('HDEL', members, 'i:' .. old_row.instance)
end
local released = {}
for at = first_released, first_acquired - 1 do
  released[#released + 1] = ARGV[at]
end
release(member, released)
if current ~= '' then
  redis.call('HSET', assignments, 'c:' .. member, current)
end
for start = 1, #acquired, 1000 do
  local pairs_of = {}
  for at = start, math.min(start + 999, #acquired) do
    pairs_of[#pairs_of + 1] = acquired[at]
    pairs_of[#pairs_of + 1] = member
  end
  redis.call('HSET', assignments, unpack(pairs_of))
end
local ends = now_ms + session_ms
if by > 0 then
  ends = math.min(ends, by)
end
redis.call('ZADD', deadlines, whole(ends), member)
if bumps or replaced ~= '' and generation > assignment_epoch then
  -- Who computes a target now may know the member that was replaced, and give what is left of its part to others.
  generation, announced = generation + 1, true
end
finish()
return {1, due_at(), generation, fields[2]}
