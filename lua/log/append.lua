-- Appends one producer batch to a partition's log, at contiguous offsets, and announces it.
-- KEYS     stream, state, producers
-- ARGV     topic id, offset sequence bits, producer id (-1: none), epoch, base sequence, last sequence, record count,
--          batch bytes, largest timestamp, channel; then for each record the number of its arguments and these
--          (field, value, field, value, ...)
-- Returns  {outcome, base offset, log start as responses report it, Redis' clock in ms}; the outcome is APPENDED,
--          DUPLICATE (the base offset is the one of the first time, nothing is written) or RENUMBER (nothing is
--          written: run log/renumber, then this again)
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, INVALID_PRODUCER_EPOCH, DUPLICATE_SEQUENCE_NUMBER,
--          OUT_OF_ORDER_SEQUENCE_NUMBER, KAFKA_STORAGE_ERROR (a malformed state or producer, offsets used up)
--
-- A producer's row is "<epoch> <ms of its last batch> <first>-<last sequence>@<base offset> ...", at most five batches,
-- the newest last. Everything that can fail is asked before the first XADD, or is the first XADD: a script that fails
-- later would leave half a batch behind. Nothing is included here: every function costs every append.

local stream, state, producers = KEYS[1], KEYS[2], KEYS[3]
local topic_id, bits, producer_id = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local epoch, base_sequence, last_sequence = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local count, batch_bytes, max_timestamp, channel = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9], ARGV[10]
local first_record = 11

local offsets_end = 9007199254740992 -- 2^53: the end of exact numbers in Lua
local sequences = 2147483648 -- KIP-98: sequences wrap from 2^31 - 1 to 0
local batches_kept = 5 -- KIP-98: a producer has at most five batches in flight
local walk_max = 100 -- milliseconds with foreign entries that an append looks through itself

local held = redis.call('HMGET', state, 'topic', 'next', 'start', 'first', 'bytes', 'max_timestamp', 'moving')
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. stream .. ' does not belong to topic id ' .. topic_id)
end
local next_offset, start, first = tonumber(held[2]), tonumber(held[3]), tonumber(held[4] or '')
local bytes, largest = tonumber(held[5]), tonumber(held[6])
if not (next_offset and next_offset >= 0 and next_offset <= offsets_end and start and bytes and largest) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
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
      local newest
      for from, to, at in string.gmatch(row, '(%d+)%-(%d+)@(%d+)') do
        newest = tonumber(to)
        if tonumber(from) == base_sequence and newest == last_sequence then
          return {'DUPLICATE', at, string.format('%d', math.max(start, first or 0)), now_ms}
        end
        batches[#batches + 1] = from .. '-' .. to .. '@' .. at
      end
      local behind = ((newest or -1) + 1 - base_sequence) % sequences
      if behind ~= 0 then
        -- All of it was written before, so long ago that its offset is forgotten; or a gap, or a mixture.
        local repeated = behind < sequences / 2 and count <= behind
        local code = repeated and 'DUPLICATE_SEQUENCE_NUMBER' or 'OUT_OF_ORDER_SEQUENCE_NUMBER'
        return redis.error_reply(string.format(
          '%s producer %s sent %d, the last was %d', code, producer_id, base_sequence, newest or -1))
      end
    end
  end
end

if held[7] then
  return {'RENUMBER', '0', '0', now_ms}
end
local width = 2 ^ bits
local ms_end = offsets_end / width
local behind_last = '-'
if next_offset > 0 then
  local ms = math.floor((next_offset - 1) / width)
  -- Exclusive of the last offset, not from the next one on: between two milliseconds there is room for ids that no
  -- offset names.
  behind_last = string.format('(%d-%d', ms, next_offset - 1 - ms * width)
end
local foreign = redis.call('XRANGE', stream, behind_last, '+', 'COUNT', 1)[1]
if foreign then
  local steps = 0
  repeat
    local ms, sequence = string.match(foreign[1], '^(%d+)-(%d+)$')
    steps = steps + 1
    if tonumber(sequence) >= width or tonumber(ms) >= ms_end or steps > walk_max then
      return {'RENUMBER', '0', '0', now_ms}
    end
    first = first or ms * width + sequence
    -- What follows within the same millisecond at or above this id has no offset: one look per millisecond is enough.
    foreign = redis.call('XRANGE', stream, string.format('%s-%d', ms, width), '+', 'COUNT', 1)[1]
  until not foreign
  local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1][1]
  local ms, sequence = string.match(last, '^(%d+)-(%d+)$')
  next_offset = ms * width + sequence + 1
end

local base = math.max(next_offset, now_ms * width)
if count > offsets_end - base then
  return redis.error_reply('KAFKA_STORAGE_ERROR the offsets of ' .. stream .. ' are used up')
end

local offset, at, left = base, first_record, count
while left > 0 do
  local ms = math.floor(offset / width)
  local sequence = offset - ms * width
  local run = math.min(left, width - sequence)
  local size = tonumber(ARGV[at])
  local id = string.format('%d-%d', ms, sequence)
  if offset == base then
    -- Refused where an entry above ours was deleted: its id is still the stream's last. No look-up tells this as
    -- cheaply as the refusal itself.
    local reply = redis.pcall('XADD', stream, id, unpack(ARGV, at + 1, at + size))
    if type(reply) == 'table' and reply.err then
      if string.sub(reply.err, 1, 4) == 'ERR ' then
        return {'RENUMBER', '0', '0', now_ms}
      end
      return reply
    end
  else
    redis.call('XADD', stream, id, unpack(ARGV, at + 1, at + size))
  end
  at = at + size + 1
  local run_id = string.format('%d-*', ms)
  for _ = 2, run do
    size = tonumber(ARGV[at])
    redis.call('XADD', stream, run_id, unpack(ARGV, at + 1, at + size))
    at = at + size + 1
  end
  offset = offset + run
  left = left - run
end

first = first or base
redis.call('HSET', state, 'next', string.format('%d', offset), 'first', string.format('%d', first),
  'bytes', string.format('%d', bytes + batch_bytes),
  'max_timestamp', tonumber(max_timestamp) > largest and max_timestamp or held[6])
if producer_id ~= '-1' then
  if #batches == batches_kept then
    table.remove(batches, 1)
  end
  batches[#batches + 1] = string.format('%d-%d@%d', base_sequence, last_sequence, base)
  redis.call('HSET', producers, producer_id,
    string.format('%d %d %s', epoch, now_ms, table.concat(batches, ' ')))
end
redis.call('PUBLISH', channel, string.format('%d', offset))
return {'APPENDED', string.format('%d', base), string.format('%d', math.max(start, first)), now_ms}
