#!lua flags=allow-oom
-- Decides how a transaction ends (EndTxn).
-- KEYS     1 transaction
-- ARGV     1 producer id
--          2 epoch
--          3 "commit" or "abort"
--          4 1 if the end gives the producer its next epoch (KIP-890, else 0)
--          5 a new producer id for one without a next epoch
-- Returns  {"DONE", producer id, epoch to go on with} if nothing is left to do, or what shared/transaction_prepared says
-- Errors   STALE_BROKER_EPOCH (shared/lease), INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_TXN_STATE,
--          KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- What is sent again gets the same answer: with the same epoch if the end does not change it, else with the one before. A
-- producer that gets its next epoch may abort without an open transaction: what it has sent before is fenced then.
-- allow-oom: an open transaction keeps its records, and all later ones, from being trimmed and compacted.

-- @include shared/lease

local transaction = KEYS[1]
local asked_id, asked_epoch, commits, bumps, new_producer_id = ARGV[1], tonumber(ARGV[2]), ARGV[3] == 'commit',
  ARGV[4] == '1', ARGV[5]
-- @include shared/transaction_state
-- @include shared/transaction_prepared

-- With the last epoch of the producer id before, when that one is used up.
local is_of_last_id = bumps and state and epoch == 0 and asked_id == last_producer_id and asked_epoch == EPOCH_LAST
local is_repeated = bumps and asked_epoch == last_epoch and (is_of_last_id or epoch == asked_epoch + 1)
local is_complete = state == 'CompleteCommit' or state == 'CompleteAbort'

if producer_id ~= asked_id and not (is_of_last_id and is_repeated) then
  return redis.error_reply('INVALID_PRODUCER_ID_MAPPING the transactional id has another producer id, or does not exist')
end
local is_known = asked_epoch == epoch
if bumps and is_prepared then
  is_known = is_repeated
elseif bumps and is_complete then
  is_known = is_known or is_repeated
end
if not is_known then
  return redis.error_reply(string.format('PRODUCER_FENCED the producer has epoch %d of id %s now', epoch, producer_id))
end

-- The last epoch of a producer id whose transaction timed out: another id is to follow it too.
if is_repeated and not commits and epoch > EPOCH_LAST and next_producer_id == '-1' then
  next_producer_id = new_producer_id
  if is_complete then
    take_next_producer_id()
  end
  write()
end

local function invalid()
  return redis.error_reply('INVALID_TXN_STATE the transaction cannot be ended so in state ' .. state)
end

-- The next epoch, and with the last one another producer id as soon as the markers are written.
local function bump()
  last_epoch, epoch = epoch, epoch + 1
  if epoch > EPOCH_LAST then
    next_producer_id = new_producer_id
  end
end

if state == 'Ongoing' then
  state = commits and 'PrepareCommit' or 'PrepareAbort'
  if bumps then
    bump()
  end
  write()
  return prepared()
elseif is_prepared then
  return commits == (state == 'PrepareCommit') and prepared() or invalid()
elseif is_complete and (is_repeated or not bumps) then
  return commits == (state == 'CompleteCommit') and {'DONE', producer_id, epoch} or invalid()
elseif commits or not bumps then
  return invalid()
end

-- Nothing was added to it, so there are no markers to write.
bump()
take_next_producer_id()
state, started = 'CompleteAbort', now_ms
write()
return {'DONE', producer_id, epoch}
