#!lua flags=allow-oom
-- Deletes a group that has no members, with its committed offsets and the Redis groups that showed them.
-- KEYS     group, members, deadlines, groups, offsets; then the streams of the committed offsets
-- ARGV     group id, its name in `groups`, "mirror" or "hide", how many offsets the caller has seen
-- Returns  1, or 0 if other offsets are committed than the caller has seen, and nothing is done
-- Errors   STALE_BROKER_EPOCH (shared/lease), NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND
--
-- allow-oom: what frees memory must work when there is none left.

-- @include shared/lease

local group, members, deadlines, groups, offsets = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group_id, listed_as, mirrors, seen = ARGV[1], ARGV[2], ARGV[3] == 'mirror', tonumber(ARGV[4])
local first_key = 6

local state = redis.call('HGET', group, 'state')
local rows = redis.call('HLEN', offsets)
if not state and rows == 0 then
  return redis.error_reply('GROUP_ID_NOT_FOUND there is no group ' .. group_id)
end
if state and state ~= 'Empty' then
  return redis.error_reply('NON_EMPTY_GROUP group ' .. group_id .. ' is ' .. state)
end
if rows ~= seen then
  return 0
end
for at = first_key, #KEYS do
  if redis.call('HEXISTS', offsets, KEYS[at]) == 0 then
    return 0
  end
end
redis.call('ZREM', groups, listed_as)
if mirrors then
  for at = first_key, #KEYS do
    -- A stream that has no such group, or is none any more, has nothing to lose.
    redis.pcall('XGROUP', 'DESTROY', KEYS[at], group_id)
  end
end
redis.call('UNLINK', group, members, deadlines, offsets)
return 1
