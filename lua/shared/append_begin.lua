-- The first half of an append, in place: the topic id, the partition's state, and idempotence (KIP-98, KIP-360).
-- Needs   stream, state, producers, topic_id, producer_id, epoch, base_sequence, last_sequence, count, dense (offsets
--         count records)
-- Leaves  next_offset, start, first, bytes, records, largest and interval (texts), epochs, lake_start, bytes_before,
--         records_before, held, now_ms, batches (the producer's, newest last), offsets_end, expelled (nil), reported (a function)
-- A producer's row is "<epoch> <ms of its last batch> <first>-<last sequence>@<base offset> ...", at most five batches.
local offsets_end = 9007199254740992 -- 2^53: the end of exact numbers in Lua
local sequences = 2147483648 -- KIP-98: sequences wrap from 2^31 - 1 to 0
local batches_kept = 5 -- KIP-98: a producer has at most five batches in flight
local expelled -- external entries that were removed; nil is none, and ends the answer before it

local held = redis.call('HMGET', state, 'topic', 'next', 'start', 'first', 'bytes', 'max_timestamp', 'interval', 'records',
  'moving', 'lake_start', 'epochs')
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. stream .. ' does not belong to topic id ' .. topic_id)
end
local next_offset, start, first = tonumber(held[2]), tonumber(held[3]), tonumber(held[4] or '')
local bytes, largest, interval = tonumber(held[5]), held[6], held[7] or '-1'
local records = dense and next_offset or tonumber(held[8] or '0')
if not (next_offset and next_offset >= 0 and next_offset <= offsets_end and start and bytes and records
    and (first or not held[4]) and tonumber(largest) and tonumber(interval)) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end
local records_before, bytes_before = records, bytes
local lake_start, epochs = tonumber(held[10] or ''), held[11]
-- What responses report as the start of the log, which has begun at `from` or after it in Redis; what is below the
-- start in the lake is no part of it, wherever it still lies.
local function reported(from)
  return string.format('%d', lake_start and lake_start < start and lake_start or math.max(start, from, lake_start or 0))
end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local batches = {}
if producer_id ~= '-1' then
  local row = redis.call('HGET', producers, producer_id)
  if row then
    local row_epoch = tonumber(string.match(row, '^(%d+) %d+ %d'))
    if not row_epoch then
      return redis.error_reply('KAFKA_STORAGE_ERROR ' .. producers .. ': producer ' .. producer_id .. ' is malformed')
    end
    if epoch < row_epoch then
      return redis.error_reply(string.format(
        'INVALID_PRODUCER_EPOCH producer %s has epoch %d, not %d', producer_id, row_epoch, epoch))
    elseif epoch > row_epoch then
      if base_sequence ~= 0 then
        return redis.error_reply(string.format(
          'OUT_OF_ORDER_SEQUENCE_NUMBER producer %s begins epoch %d with sequence %d', producer_id, epoch,
          base_sequence))
      end
    else
      local oldest, newest
      for from, to, at in string.gmatch(row, '(%d+)%-(%d+)@(%d+)') do
        oldest, newest = oldest or tonumber(from), tonumber(to)
        if tonumber(from) == base_sequence and newest == last_sequence then
          return {'DUPLICATE', at, reported(first or 0), now_ms, '0'}
        end
        batches[#batches + 1] = from .. '-' .. to .. '@' .. at
      end
      local distance = ((newest or -1) + 1 - base_sequence) % sequences
      if distance ~= 0 then
        -- All of it was written before, so long ago that its offset is forgotten; or a gap, or a mixture. What lies
        -- before the first batch is forgotten only if others were since: else it never came, though later ones did.
        local repeated = distance < sequences / 2 and count <= distance
          and (#batches == batches_kept or (base_sequence - (oldest or 0)) % sequences < sequences / 2)
        local code = repeated and 'DUPLICATE_SEQUENCE_NUMBER' or 'OUT_OF_ORDER_SEQUENCE_NUMBER'
        return redis.error_reply(string.format(
          '%s producer %s sent %d, the last was %d', code, producer_id, base_sequence, newest or -1))
      end
    end
  end
end
