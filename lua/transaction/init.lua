#!lua
-- Gives a producer with a transactional id its producer id and epoch (InitProducerId), and fences the one before it.
-- KEYS     1 transaction
-- ARGV     1 when the id was listed (shared/listed)
--          2 transaction timeout (ms)
--          3 producer id of the producer (-1: none; KIP-360)
--          4 its epoch (-1: none)
--          5 a new producer id
-- Returns  {"UNLISTED", now (ms)} if it would create the transactional id and it is not listed: nothing is done. Else
--          {"DONE", producer id, epoch}, or what shared/transaction_prepared says if a transaction has to be completed
--          before: then the caller completes it and calls again
-- Errors   STALE_BROKER_EPOCH (shared/lease), PRODUCER_FENCED, KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- An open transaction is aborted, with an epoch that fences its producer. A producer that names the epoch before the
-- present one sends again what was done, and gets the same answer.

-- @include shared/lease

local transaction = KEYS[1]
local listed_at, timeout_asked, asked_id, asked_epoch = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local new_producer_id = ARGV[5]
-- @include shared/listed
-- @include shared/transaction_state
-- @include shared/transaction_prepared

local function done()
  timeout_ms, started, state = timeout_asked, 0, 'Empty'
  write()
  return {'DONE', producer_id, epoch}
end

if not state then
  -- A producer that names an id it had is one whose transactional id has expired.
  if not is_listed(listed_at) then
    return {'UNLISTED', now_ms}
  end
  producer_id, last_producer_id, next_producer_id, last_epoch = new_producer_id, '-1', '-1', -1
  return done()
end

local names_epoch = asked_id ~= '-1'
local is_of_last_id = names_epoch and asked_id ~= producer_id
local is_repeated = names_epoch and asked_epoch == last_epoch and state ~= 'Ongoing'
if is_of_last_id and not (asked_id == last_producer_id and asked_epoch >= EPOCH_LAST and is_repeated)
    or names_epoch and not is_of_last_id and asked_epoch ~= epoch and not is_repeated then
  return redis.error_reply(string.format('PRODUCER_FENCED the producer has epoch %d of id %s now', epoch, producer_id))
end

if state == 'Ongoing' then
  -- Who names its epoch gets this one, when it asks again; nobody else does.
  state, last_epoch, epoch = 'PrepareAbort', names_epoch and epoch or -1, epoch + 1
  write()
  return prepared()
elseif is_prepared then
  return prepared()
end

if not is_of_last_id and (epoch > EPOCH_LAST or epoch == EPOCH_LAST and not is_repeated) then
  last_producer_id, last_epoch = producer_id, names_epoch and asked_epoch or -1
  producer_id, epoch = new_producer_id, 0
elseif not is_repeated then
  last_epoch = names_epoch and epoch or -1
  epoch = epoch + 1
end
return done()
