#!lua
-- Adds partitions and groups to the transaction of a producer, which this opens if none is, or verifies that they are in it.
-- KEYS     1 transaction
-- ARGV     1 "add" or "verify"
--          2 producer id
--          3 epoch
--          4 and on: for each partition and group: its field; its value
-- Returns  {"ADDED", when (ms) the keeper has to look at it (-1: nothing was added), number of the transaction}, or what
--          shared/transaction_prepared says: then the caller completes that transaction and calls again
-- Errors   STALE_BROKER_EPOCH (shared/lease), INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_TXN_STATE (one is not in
--          the transaction), KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- All are added or none. A number is greater than those of all transactions of the id before, also of one that a failover
-- of Redis has taken back: what comes late for another transaction is known by it.

-- @include shared/lease

local transaction = KEYS[1]
local adds, asked_id, asked_epoch = ARGV[1] == 'add', ARGV[2], tonumber(ARGV[3])
local first_field, at_once = 4, 1000 -- arguments: unpack takes no more than some thousands
-- @include shared/transaction_state
-- @include shared/transaction_prepared

if producer_id ~= asked_id then
  return redis.error_reply('INVALID_PRODUCER_ID_MAPPING the transactional id has another producer id, or does not exist')
elseif asked_epoch ~= epoch then
  return redis.error_reply(string.format('PRODUCER_FENCED the producer has epoch %d now', epoch))
elseif is_prepared then
  return prepared()
end

if adds then
  if state ~= 'Ongoing' then
    state, number, started = 'Ongoing', math.max(number + 1, now_ms), now_ms
    write()
  end
  for at = first_field, #ARGV, at_once do
    redis.call('HSET', transaction, unpack(ARGV, at, math.min(at + at_once - 1, #ARGV)))
  end
  -- Each time, for the process that has opened it may have died before it could tell the list.
  return {'ADDED', started + timeout_ms, number}
end

for at = first_field, #ARGV, 2 do
  if state ~= 'Ongoing' or redis.call('HGET', transaction, ARGV[at]) ~= ARGV[at + 1] then
    return redis.error_reply('INVALID_TXN_STATE ' .. ARGV[at] .. ' is not in the transaction of the producer')
  end
end
return {'ADDED', -1, number}
