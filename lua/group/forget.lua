#!lua flags=allow-oom
-- Deletes committed offsets of a group that has not changed since the caller read it, and the Redis groups that showed them.
-- KEYS     group, members, deadlines, groups, offsets; then the streams whose offsets to delete
-- ARGV     group id, its name in `groups`, "mirror" or "hide", "drop" to delete a group with neither members nor offsets (else
--          "keep"), its state, generation and time of its last change as the caller has read them; then for each stream
--          its row as the caller has read it, "" for any
-- Returns  {1, or 0 if the group has changed and nothing is done, offsets deleted, 1 if the group was deleted else 0}
-- Errors   STALE_BROKER_EPOCH (shared/lease)
--
-- A row that has changed meanwhile stays. allow-oom: what frees memory must work when there is none left.

-- @include shared/lease

local group, members, deadlines, groups, offsets = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group_id, listed_as, mirrors, drops = ARGV[1], ARGV[2], ARGV[3] == 'mirror', ARGV[4] == 'drop'
local first_key, first_row = 6, 8

local held = redis.call('HMGET', group, 'state', 'generation', 'since')
for at = 1, 3 do
  if (held[at] or '') ~= ARGV[4 + at] then
    return {0, 0, 0}
  end
end
redis.call('ZCARD', groups) -- a key of another type ends the script here, before it has written anything
local deleted = 0
for at = first_key, #KEYS do
  local seen = ARGV[first_row + at - first_key]
  if (seen == '' or redis.call('HGET', offsets, KEYS[at]) == seen) and redis.call('HDEL', offsets, KEYS[at]) == 1 then
    deleted = deleted + 1
    if mirrors then
      -- A stream that has no such group, or is none any more, has nothing to lose.
      redis.pcall('XGROUP', 'DESTROY', KEYS[at], group_id)
    end
  end
end
local is_empty = not held[1] or held[1] == 'Empty'
if not (drops and is_empty) or redis.call('EXISTS', offsets) == 1 or redis.call('EXISTS', deadlines) == 1 then
  return {1, deleted, 0}
end
redis.call('UNLINK', group, members)
redis.call('ZREM', groups, listed_as)
return {1, deleted, 1}
