#!lua flags=allow-oom
-- Commits offsets of a group, and shows them to users of Redis as consumer groups of the streams.
-- KEYS     group, members, deadlines, groups, offsets; then for each partition: stream, state
-- ARGV     group id, its name in `groups`, generation (-1: none), member id ("": none), instance id ("":
--          none), "mirror" or "hide", time (ms) after which nothing may have been committed (0: any time); then for
--          each partition: topic id, row (JSON) up to its time (ms), the id up to which a Redis group has read
-- Returns  for each partition 1; or, and nothing is committed for it, 0 if it does not belong to the topic id, -1 if
--          something was committed for it later than that time
-- Errors   STALE_BROKER_EPOCH (shared/lease), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
--          REBALANCE_IN_PROGRESS, GROUP_ID_NOT_FOUND
--
-- A client that is no member may commit while the group has none; that creates the group if there is none yet. A commit of
-- a member renews its session as a heartbeat does. A Redis group is advice: if a stream takes none, the commit counts
-- anyway. allow-oom: a consumer that cannot commit would read all again, and a row takes no more than the last one.

-- @include shared/lease

local group, members, deadlines, groups, offsets = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group_id, listed_as, generation = ARGV[1], ARGV[2], tonumber(ARGV[3])
local member_id, instance_id, mirrors = ARGV[4], ARGV[5], ARGV[6] == 'mirror'
local first_key, keys_per_partition, first_argument, arguments_per_partition = 6, 2, 8, 3
local not_after = tonumber(ARGV[7])

local held = redis.call('HMGET', group, 'state', 'generation')
local state = held[1]
-- Keys of another type end the script here, before it has written anything.
redis.call('HLEN', offsets)
if not state then
  redis.call('ZCARD', groups)
end
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
  if session_ms then
    -- GT: a member whose join waits has no end of its session, and must not get one.
    redis.call('ZADD', deadlines, 'XX', 'GT', string.format('%d', now_ms + session_ms), member_id)
  end
end

local now_text = string.format('%d', now_ms)
local outcomes, rows, read_up_to = {}, {}, {}
for n = 1, (#KEYS - first_key + 1) / keys_per_partition do
  local stream, log_state = KEYS[first_key + 2 * (n - 1)], KEYS[first_key + 2 * (n - 1) + 1]
  local at = first_argument + arguments_per_partition * (n - 1)
  local row = not_after > 0 and redis.call('HGET', offsets, stream)
  if redis.call('HGET', log_state, 'topic') ~= ARGV[at] then
    outcomes[n] = 0
  elseif row and (tonumber(string.match(row, '"ms":(%d+)}$')) or 0) > not_after then
    outcomes[n] = -1
  else
    rows[#rows + 1], rows[#rows + 2] = stream, ARGV[at + 1] .. now_text .. '}'
    read_up_to[#read_up_to + 1], read_up_to[#read_up_to + 2] = stream, ARGV[at + 2]
    outcomes[n] = 1
  end
end
if not rows[1] then
  return outcomes
end
local at_once = 1000 -- arguments: unpack takes no more than some thousands
for at = 1, #rows, at_once do
  redis.call('HSET', offsets, unpack(rows, at, math.min(at + at_once - 1, #rows)))
end
if not state then
  redis.call('HSET', group, 'state', 'Empty', 'generation', '0', 'since', now_text)
  redis.call('ZADD', groups, 'NX', '+inf', listed_as)
end
if mirrors then
  for at = 1, #read_up_to, 2 do
    local moved = redis.pcall('XGROUP', 'SETID', read_up_to[at], group_id, read_up_to[at + 1])
    if moved.err and string.find(moved.err, '^NOGROUP') then
      redis.pcall('XGROUP', 'CREATE', read_up_to[at], group_id, read_up_to[at + 1])
    end
  end
end
return outcomes
