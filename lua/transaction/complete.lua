#!lua flags=allow-oom
-- Completes a transaction all of whose markers are written.
-- KEYS     1 transaction
-- ARGV     1 number of the transaction
-- Returns  1, or 0 if another caller has completed it
-- Errors   KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- allow-oom: what frees memory must work when there is none left.

-- @include shared/clock

local transaction = KEYS[1]
local asked_number = tonumber(ARGV[1])
-- @include shared/transaction_state
-- @include shared/transaction_prepared

if not is_prepared or number ~= asked_number then
  return 0
end
state = state == 'PrepareCommit' and 'CompleteCommit' or 'CompleteAbort'
take_next_producer_id()
local parts = {}
local flat = redis.call('HGETALL', transaction)
for at = 1, #flat, 2 do
  if string.match(flat[at], '^[pg]:') then
    parts[#parts + 1] = flat[at]
  end
end
write()
for at = 1, #parts, 1000 do
  redis.call('HDEL', transaction, unpack(parts, at, math.min(at + 999, #parts)))
end
return 1
