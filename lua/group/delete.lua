#!lua flags=allow-oom
-- Deletes a group that has no members, with its committed offsets.
-- KEYS     1 group
--          2 members
--          3 deadlines
--          4 offsets
--          5 pending
--          6 assignments
-- ARGV     1 group id
--          2 and on: the fields of the committed offsets as the caller has seen them
-- Returns  1, or 0 if other offsets are committed than the caller has seen, and nothing is done
-- Errors   STALE_BROKER_EPOCH (shared/lease), NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND
--
-- The caller deletes the Redis groups that show the offsets before, and takes the name off the list of groups after.
-- What transactions are to commit goes too, as in Kafka.
-- allow-oom: what frees memory must work when there is none left.

-- @include shared/lease

local group, members, deadlines, offsets, pending = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local assignments = KEYS[6]
local group_id, first_field = ARGV[1], 2

local state = redis.call('HGET', group, 'state')
local rows = redis.call('HLEN', offsets)
if not state and rows == 0 then
  return redis.error_reply('GROUP_ID_NOT_FOUND there is no group ' .. group_id)
end
if state and state ~= 'Empty' then
  return redis.error_reply('NON_EMPTY_GROUP group ' .. group_id .. ' is ' .. state)
end
if rows ~= #ARGV - first_field + 1 then
  return 0
end
for at = first_field, #ARGV do
  if redis.call('HEXISTS', offsets, ARGV[at]) == 0 then
    return 0
  end
end
redis.call('UNLINK', group, members, deadlines, offsets, pending, assignments)
return 1
