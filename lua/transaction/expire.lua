#!lua flags=allow-oom
-- Does what is due about a transactional id: aborts a transaction past its timeout, deletes an id past its expiration.
-- KEYS     1 transaction
-- ARGV     1 ms without a transaction after which an id expires (transactional.id.expiration.ms)
-- Returns  when (ms) something is due again, -2 if there is no such id any more, or what shared/transaction_prepared says:
--          then the caller completes that transaction
-- Errors   KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- A timeout fences the producer. It may go on by its next epoch, which it gets when it aborts (EndTxn 5) or asks for one
-- (InitProducerId). allow-oom: what frees memory must work when there is none left.

-- @include shared/clock

local transaction = KEYS[1]
local expiration_ms = tonumber(ARGV[1])
-- @include shared/transaction_state
-- @include shared/transaction_prepared

if not state then
  return -2
elseif is_prepared then
  return prepared()
elseif state == 'Ongoing' and started > now_ms then
  started = now_ms -- the clock was set back
  write()
  return started + timeout_ms
elseif state == 'Ongoing' then
  if started + timeout_ms > now_ms then
    return started + timeout_ms
  end
  state, epoch, last_epoch = 'PrepareAbort', epoch + 1, epoch
  write()
  return prepared()
elseif changed + expiration_ms > now_ms then
  return changed + expiration_ms
end
redis.call('UNLINK', transaction)
return -2
