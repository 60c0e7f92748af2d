#!lua
-- Lets a member join a group: a new one, one that got its id before, or one that joins again.
-- KEYS     1 group
--          2 members
--          3 deadlines
-- ARGV     1 channel of the group
--          2 when it was listed (shared/listed)
--          3 member id ("" for a new one)
--          4 the id that a new one gets
--          5 1 if a new one must join again with that id (KIP-394, else 0)
--          6 1 if a leader can be asked to skip assigning (KIP-814, else 0)
--          7 most members of a group
--          8 initial delay in ms
--          9 protocol type
--          10 the member's row
--          11 its protocols as they came
-- Returns  {"UNLISTED", now (ms)} if it would create the group and it is not listed: nothing is done. Else, second, when
--          (ms, Redis' clock) something is due in the group:
--          {"WAIT", due, member id, generation, ms until then (-1: nothing is due)} if it waits for others,
--          {"JOINED", due, member id, generation, protocol type, protocol, leader, 1 if the leader is to assign nothing
--          else 0, and for the leader of each member: its id, its instance id or "", its protocols}, or
--          {"REFUSED", due, error, message} if something was done: MEMBER_ID_REQUIRED (the id is kept for a session
--          timeout), GROUP_MAX_SIZE_REACHED (the member is removed)
-- Errors   GROUP_ID_NOT_FOUND (a group of the consumer protocol with members, or a share group),
--          STALE_BROKER_EPOCH (shared/lease), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL,
--          GROUP_MAX_SIZE_REACHED, TRYAGAIN (shared/slot_stays), KAFKA_STORAGE_ERROR (what is stored cannot be read),
--          OOM (shared/memory_is_full)
--
-- Where memory is full the members of a group read on, through every rebalance, and a static one restarts; nobody else joins.

-- @include shared/lease
-- @include shared/memory_is_full

local group, members, deadlines = KEYS[1], KEYS[2], KEYS[3]
local channel, listed_at = ARGV[1], tonumber(ARGV[2])
local asked, new_id, requires_id, supports_skip = ARGV[3], ARGV[4], ARGV[5] == '1', ARGV[6] == '1'
local size_max, initial_delay, type_asked = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
local row_text, protocols = ARGV[10], ARGV[11]
-- @include shared/listed
-- @include shared/group_state
-- @include shared/slot_stays
-- @include shared/group_steps
-- @include shared/group_reply

local row = decoded(asked, row_text)
local instance = row.instance
local member = asked == '' and new_id or asked
local waiting = 'inf'

local is_dead = state == 'Dead'
if is_dead then
  if asked ~= '' then
    return redis.error_reply('UNKNOWN_MEMBER_ID the group has no members')
  end
  state = 'Empty'
end

local before = asked ~= '' and row_of(asked)
-- A member that got its id first is not static.
local pending = asked ~= '' and instance == '' and redis.call('HEXISTS', members, 'w:' .. asked) == 1
local replaced = asked == '' and instance ~= '' and redis.call('HGET', members, 'i:' .. instance)

-- While members join, the first to come have the places. An id that was given out has none yet: it may never be used.
local function has_room()
  if replaced then
    return true
  elseif state == 'PreparingRebalance' then
    return before and redis.call('ZSCORE', deadlines, asked) == waiting
      or redis.call('ZCOUNT', deadlines, '+inf', '+inf') < size_max
  end
  return before or size < size_max
end

local function supported()
  if type_asked == '' or #row.protocols == 0 then
    return false
  elseif size == 0 then
    return true
  elseif type_asked ~= protocol_type then
    return false
  end
  for _, each in ipairs(row.protocols) do
    if tonumber(redis.call('HGET', group, 's:' .. each) or '0') == size then
      return true
    end
  end
  return false
end

if not has_room() then
  local full = 'the group has ' .. whole(size_max) .. ' members already'
  if before or pending then
    read_ahead({asked})
    remove(asked)
    after_removal()
    finish()
    return {'REFUSED', due_at(), 'GROUP_MAX_SIZE_REACHED', full}
  end
  return redis.error_reply('GROUP_MAX_SIZE_REACHED ' .. full)
elseif not supported() then
  return redis.error_reply('INCONSISTENT_GROUP_PROTOCOL the group is of type ' .. protocol_type
    .. ', or no protocol is one that all its members support')
end

-- Bytes that a member may add while memory is full, besides its assignment: its owned partitions stand in its metadata,
-- often for two protocols.
local SMALL = 4096
if memory_is_full then
  local had = before and asked or replaced
  local held = had and redis.call('HMGET', members, 'm:' .. had, 'p:' .. had, 'a:' .. had) or {}
  local bytes_max = math.max(#(held[1] or '') + #(held[2] or ''), SMALL + 2 * #(held[3] or ''))
  if not had or #row_text + #protocols > bytes_max then
    return redis.error_reply('OOM memory is full, and the member would take more of it')
  end
end
if is_dead and not is_listed(listed_at) then
  return {'UNLISTED', now_ms}
end

if asked == '' and instance == '' and requires_id then
  redis.call('HSET', members, 'w:' .. member, whole(row.session_ms))
  redis.call('ZADD', deadlines, whole(now_ms + row.session_ms), member)
  finish()
  return {'REFUSED', due_at(), 'MEMBER_ID_REQUIRED', member}
end

local function write(known)
  if known and instance == '' and known.instance ~= '' then
    -- A static member stays one if it does not say so again.
    row.instance = known.instance
    row_text = cjson.encode(row)
  end
  redis.call('HSET', members, 'm:' .. member, row_text, 'p:' .. member, protocols)
  rows[member] = row
  if known then
    count_protocols(known.protocols, -1)
  else
    size = size + 1
  end
  count_protocols(row.protocols, 1)
  protocol_type = type_asked
  if instance ~= '' then
    redis.call('HSET', members, 'i:' .. instance, member)
  end
end

-- Waits for the others, unless all have joined.
local function join_again()
  if state ~= 'PreparingRebalance' then
    prepare(initial_delay)
  end
  redis.call('ZADD', deadlines, '+inf', member)
  local generation_left = generation
  complete_if_all_joined()
  finish()
  if generation ~= generation_left then
    return joined(member, false)
  end
  return {'WAIT', due_at(), member, whole(generation), due_in()}
end

local function answer_now(skip, leader_reported)
  redis.call('ZADD', deadlines, whole(now_ms + row.session_ms), member)
  finish()
  return joined(member, skip, leader_reported)
end

if replaced then
  -- The instance has restarted: it keeps its place under a new id, and requests with the old one are fenced.
  row_of(replaced)
  read_ahead({replaced})
  local assignment = redis.call('HGET', members, 'a:' .. replaced)
  local leader_before, chosen_before = leader, protocol
  remove(replaced)
  if leader_before == replaced then
    leader = member
  end
  write()
  redis.call('ZADD', deadlines, whole(now_ms + row.session_ms), member)
  if assignment then
    redis.call('HSET', members, 'a:' .. member, assignment)
  end
  if state == 'Stable' and chosen_protocol() == chosen_before then
    redis.call('HSET', members, 's:' .. member, whole(generation))
    return answer_now(supports_skip and leader == member, not supports_skip and leader_before or nil)
  end
  return join_again()
end

if asked == '' or pending then
  read_ahead({asked})
  redis.call('HDEL', members, 'w:' .. member)
  if state == 'PreparingRebalance' and extend_until > 0 then
    added = true
  end
  write()
  -- A row of its own in `deadlines` before the rebalance timeouts of all are read.
  redis.call('ZADD', deadlines, '+inf', member)
  if leader == '' then
    leader = member
  end
  return join_again()
end

local refused = refusal(asked, instance)
if refused then
  return redis.error_reply(refused .. ' the group has no such member')
end
local same = redis.call('HGET', members, 'p:' .. member) == protocols
local repeated = same and (state == 'CompletingRebalance' or state == 'Stable' and leader ~= member)
if not repeated or leader == member then
  read_ahead({asked})
end
write(before)
if repeated then
  return answer_now(false)
end
return join_again()
