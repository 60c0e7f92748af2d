#!lua
-- Keeps offsets of a group that a transaction is to commit: they count once group/end_transaction has committed it.
-- KEYS     1 group
--          2 members
--          3 deadlines
--          4 offsets
--          5 pending
-- ARGV     1 group id
--          2 when it was listed (shared/listed)
--          3 generation (-1: none)
--          4 member id ("": none)
--          5 instance id ("": none)
--          6 time (ms) after which nothing may have been committed (0: any time)
--          7 1 to replace offsets of another topic id (else 0)
--          8 producer id
--          9 epoch
--          10 number of the transaction
--          11 and on: for each partition: its stream, topic id, row (JSON) up to its time (ms)
-- Returns  as group/commit
-- Errors   STALE_BROKER_EPOCH (shared/lease), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, STALE_MEMBER_EPOCH,
--          GROUP_ID_NOT_FOUND, UNSUPPORTED_VERSION (shared/committer; never here),
--          INVALID_PRODUCER_EPOCH (the producer has a later epoch), INVALID_TXN_STATE (the transaction has ended),
--          KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- A producer's row in pending is JSON: number and epoch of its last transaction, whether that is open, the time (ms) of its
-- last change, and rows as they will be committed, by stream. Rows of an earlier transaction whose end was lost are dropped.
-- A session is not renewed: the producer is no member.

-- @include shared/lease

local group, members, deadlines, offsets, pending = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group_id, listed_at, generation = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local member_id, instance_id, not_after, replaces = ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1'
local producer_id, epoch, number = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
local knows_epochs, first_argument, transactional, memory_is_full = true, 11, true, false
-- @include shared/listed
-- @include shared/committer
-- @include shared/pending_row

if stored and epoch < stored.epoch then
  return redis.error_reply(string.format('INVALID_PRODUCER_EPOCH producer %s has epoch %d, not %d', producer_id,
    stored.epoch, epoch))
elseif is_ended(number) then
  return redis.error_reply('INVALID_TXN_STATE the transaction of producer ' .. producer_id .. ' has ended')
end
local pending_rows = stored and stored.number == number and stored.rows or {}

-- @include shared/commit_rows
if not rows[1] then
  return outcomes
end
if not state and not is_listed(listed_at) then
  return {'UNLISTED', now_ms}
end
for at = 1, #rows, 2 do
  pending_rows[rows[at]] = rows[at + 1]
end
redis.call('HSET', pending, producer_id,
  cjson.encode({number = number, epoch = epoch, open = true, ms = now_ms, rows = pending_rows}))
if not state then
  redis.call('HSET', group, 'state', 'Empty', 'generation', '0', 'since', now_text)
end
return outcomes
