#!lua flags=allow-oom
-- Deletes committed offsets of a group that has not changed since the caller read it.
-- KEYS     1 group
--          2 members
--          3 deadlines
--          4 offsets
--          5 pending
--          6 assignments
-- ARGV     1 "drop" to delete a group with neither members nor offsets (else "keep")
--          2 its state as the caller has read it
--          3 its generation, likewise
--          4 time of its last change, likewise
--          5 and on: for each offset: its stream; its row as the caller has read it, "" for any row and any pending
--            commit of a transaction
-- Returns  {1, or 0 if the group has changed and nothing is done, offsets deleted, 1 if the group was deleted else 0}
-- Errors   STALE_BROKER_EPOCH (shared/lease), TRYAGAIN (shared/slot_stays)
--
-- A row that has changed meanwhile stays, and so does a group for which a transaction is to commit something, and the number
-- of an ended transaction that has no group (group/expire_transactions forgets it). The caller
-- deletes the Redis groups that show the offsets before, and takes the name of a deleted group off the list of groups after.
-- allow-oom: what frees memory must work when there is none left.

-- @include shared/lease

local group, members, deadlines, offsets, pending = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local assignments = KEYS[6]
local drops, first_argument = ARGV[1] == 'drop', 5

local held = redis.call('HMGET', group, 'state', 'generation', 'since')
for at = 1, 3 do
  if (held[at] or '') ~= ARGV[1 + at] then
    return {0, 0, 0}
  end
end
-- @include shared/slot_stays
-- @include shared/pending_offsets

local forgotten = {}
for at = first_argument, #ARGV, 2 do
  forgotten[ARGV[at]] = ARGV[at + 1] == ''
end
redis.call('HLEN', offsets) -- a key of another type is found before anything is written
local some_pending = drop_pending(function(stream) return forgotten[stream] end)
local deleted = 0
for at = first_argument, #ARGV, 2 do
  local stream, seen = ARGV[at], ARGV[at + 1]
  if seen == '' or redis.call('HGET', offsets, stream) == seen then
    deleted = deleted + redis.call('HDEL', offsets, stream)
  end
end
local is_empty = not held[1] or held[1] == 'Empty'
if not (drops and is_empty) or some_pending or redis.call('EXISTS', offsets) == 1
  or redis.call('EXISTS', deadlines) == 1 or not held[1] and redis.call('EXISTS', pending) == 1 then
  return {1, deleted, 0}
end
redis.call('UNLINK', group, members, pending, assignments)
return {1, deleted, (held[1] or deleted > 0) and 1 or 0}
