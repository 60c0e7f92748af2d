#!lua flags=allow-oom
-- Commits offsets of a group.
-- KEYS     group, members, deadlines, offsets
-- ARGV     group id, when it was listed (shared/listed), generation (-1: none), member id ("": none), instance id ("": none),
--          time (ms) after which nothing may have been committed (0: any time), 1 to replace offsets of another topic id
--          (else 0); then for each partition: its stream, topic id, row (JSON) up to its time (ms)
-- Returns  {"UNLISTED", now (ms)} if it would create the group and it is not listed: nothing is done. Else for each partition
--          1; or, and nothing is committed for it, 0 if the committed offset is of another topic id, -1 if something was
--          committed for it later than that time
-- Errors   STALE_BROKER_EPOCH (shared/lease), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
--          REBALANCE_IN_PROGRESS, GROUP_ID_NOT_FOUND
--
-- A client that is no member may commit while the group has none; that creates the group if there is none yet. A commit of
-- a member renews its session as a heartbeat does. An offset of another topic id than the caller's shows that the topic was
-- created again, and the caller may be the one that does not know: it refreshes, and replaces it if its own id is the
-- later one. allow-oom: a consumer that cannot commit would read all again, and a row takes no more than the last one.

-- @include shared/lease

local group, members, deadlines, offsets = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group_id, listed_at, generation = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local member_id, instance_id, not_after, replaces = ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1'
local first_argument, arguments_per_partition = 8, 3
-- @include shared/listed

local held = redis.call('HMGET', group, 'state', 'generation')
local state, session_end = held[1], nil
if not state and generation >= 0 then
  return redis.error_reply('GROUP_ID_NOT_FOUND there is no group ' .. group_id)
end
if state and (generation >= 0 or state ~= 'Empty') then
  if generation < 0 and member_id == '' and instance_id == '' then
    return redis.error_reply('UNKNOWN_MEMBER_ID group ' .. group_id .. ' has members, and only these may commit')
  end
  local found = redis.call('HMGET', members, 'm:' .. member_id, 'i:' .. instance_id)
  if instance_id ~= '' and found[2] and found[2] ~= member_id then
    return redis.error_reply('FENCED_INSTANCE_ID instance ' .. instance_id .. ' of group ' .. group_id
      .. ' belongs to another member now')
  end
  if not found[1] or instance_id ~= '' and not found[2] then
    return redis.error_reply('UNKNOWN_MEMBER_ID group ' .. group_id .. ' has no member ' .. member_id)
  end
  if generation ~= tonumber(held[2]) then
    return redis.error_reply(string.format('ILLEGAL_GENERATION group %s is in generation %s, not %d', group_id,
      tostring(held[2]), generation))
  end
  if state == 'CompletingRebalance' then
    return redis.error_reply('REBALANCE_IN_PROGRESS group ' .. group_id .. ' waits for its assignments')
  end
  local readable, member = pcall(cjson.decode, found[1])
  local session_ms = readable and type(member) == 'table' and tonumber(member.session_ms)
  session_end = session_ms and string.format('%d', now_ms + session_ms)
end

-- The text by which a row is of a topic. No metadata contains it: JSON writes a backslash before its quotation marks.
local topic_id, mark
local now_text, at_once = string.format('%d', now_ms), 1000 -- arguments: unpack takes no more than some thousands
local outcomes, rows = {}, {}
local partitions = (#ARGV - first_argument + 1) / arguments_per_partition
for start = 1, partitions, at_once do
  local streams = {}
  for n = start, math.min(start + at_once - 1, partitions) do
    streams[#streams + 1] = ARGV[first_argument + arguments_per_partition * (n - 1)]
  end
  for n, row in ipairs(redis.call('HMGET', offsets, unpack(streams))) do
    local at = first_argument + arguments_per_partition * (start + n - 2)
    local outcome = 1
    if ARGV[at + 1] ~= topic_id then
      topic_id = ARGV[at + 1]
      mark = '"topic_id":"' .. topic_id .. '"'
    end
    if not row then
      outcome = 1
    elseif not_after > 0 and (tonumber(string.match(row, '"ms":(%d+)}$')) or 0) > not_after then
      outcome = -1
    elseif not replaces and not string.find(row, mark, 1, true) and string.find(row, '"topic_id":"', 1, true) then
      outcome = 0
    end
    outcomes[#outcomes + 1] = outcome
    if outcome == 1 then
      rows[#rows + 1], rows[#rows + 2] = ARGV[at], ARGV[at + 2] .. now_text .. '}'
    end
  end
end
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
