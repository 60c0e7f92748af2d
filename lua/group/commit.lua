#!lua
-- Commits offsets of a group.
-- KEYS     1 group
--          2 members
--          3 deadlines
--          4 offsets
-- ARGV     1 group id
--          2 when it was listed (shared/listed)
--          3 generation (-1: none)
--          4 member id ("": none)
--          5 instance id ("": none)
--          6 time (ms) after which nothing may have been committed (0: any time)
--          7 1 to replace offsets of another topic id (else 0)
--          8 1 if the client knows of member epochs (else 0)
--          9 and on: for each partition: its stream, topic id, row (JSON) up to its time (ms)
-- Returns  {"UNLISTED", now (ms)} if it would create the group and it is not listed: nothing is done. Else for each partition
--          1; or, and nothing is committed for it, 0 if the committed offset is of another topic id, -1 if something was
--          committed for it later than that time, -2 if memory is full and it takes more than what it would replace
-- Errors   STALE_BROKER_EPOCH (shared/lease), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, STALE_MEMBER_EPOCH,
--          UNSUPPORTED_VERSION (shared/committer), REBALANCE_IN_PROGRESS, GROUP_ID_NOT_FOUND
--
-- A client that is no member may commit while the group has none; that creates the group if there is none yet. A commit of
-- a member renews its session as a heartbeat does, but not in a group of the consumer protocol. An offset of another topic
-- id than the caller's shows that the topic was created again, and the caller may be the one that does not know: it
-- refreshes, and replaces it if its own id is the later one. Where memory is full an offset replaces one whose metadata is
-- no shorter, and nothing else is committed: a consumer goes on, and a client cannot fill what is left.

-- @include shared/lease
-- @include shared/memory_is_full

local group, members, deadlines, offsets = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group_id, listed_at, generation = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local member_id, instance_id, not_after, replaces = ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1'
local knows_epochs, first_argument, transactional, pending_rows = ARGV[8] == '1', 9, false, {}
-- @include shared/listed

-- @include shared/committer

local session_end
if member_row and held[3] ~= 'consumer' then
  if state == 'CompletingRebalance' then
    return redis.error_reply('REBALANCE_IN_PROGRESS group ' .. group_id .. ' waits for its assignments')
  end
  local readable, member = pcall(cjson.decode, member_row)
  local session_ms = readable and type(member) == 'table' and tonumber(member.session_ms)
  session_end = session_ms and string.format('%d', now_ms + session_ms)
end

-- @include shared/commit_rows
if session_end then
  -- GT: a member whose join waits has no end of its session, and must not get one.
  redis.call('ZADD', deadlines, 'XX', 'GT', session_end, member_id)
end
if not rows[1] then
  return outcomes
end
if not state and not is_listed(listed_at) then
  return {'UNLISTED', now_ms}
end
for at = 1, #rows, at_once do
  redis.call('HSET', offsets, unpack(rows, at, math.min(at + at_once - 1, #rows)))
end
if not state then
  redis.call('HSET', group, 'state', 'Empty', 'generation', '0', 'since', now_text)
end
return outcomes
