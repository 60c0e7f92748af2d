-- Appends one producer batch, whole, as one entry of a partition's log in format batch, and announces it.
-- KEYS     stream, state, producers, index
-- ARGV     topic id, leader epoch, producer id (-1: none), epoch, base sequence, last sequence, record count, bytes as
--          stored, largest timestamp, channel; then the entry's fields and values
-- Returns  {outcome, base offset, log start as responses report it, Redis' clock in ms, bytes that ever came if a
--          row of the index was written, else 0, external entries that were removed, if any were}; the outcome is APPENDED,
--          DUPLICATE (the base offset is the one of the first time, nothing is written) or EXPEL (nothing is appended,
--          there are more external entries than one step removes: run log/expel, then this again)
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER (a later leader epoch has begun), INVALID_PRODUCER_EPOCH,
--          DUPLICATE_SEQUENCE_NUMBER, OUT_OF_ORDER_SEQUENCE_NUMBER, KAFKA_STORAGE_ERROR (a malformed state or producer,
--          offsets used up)
--
-- Offsets are dense from 0, and the entry's id is "<offset just past the batch>-0": the batch that holds an offset is
-- the first entry after it.

local stream, state, producers, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local topic_id, leader_epoch, producer_id = ARGV[1], ARGV[2], ARGV[3]
local epoch, base_sequence, last_sequence = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local count, batch_bytes, max_timestamp, channel = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9], ARGV[10]
local first_field, dense = 11, true
local expelled_max = 1000 -- as many as a step of log/expel removes

-- @include shared/expel_entries
-- @include shared/index_steps
-- @include shared/append_begin
-- @include shared/leader_epoch

local base = next_offset
if count > offsets_end - base then -- not base + count > offsets_end: that sum may be no exact number
  return redis.error_reply('KAFKA_STORAGE_ERROR the offsets of ' .. stream .. ' are used up')
end
local offset = base + count
local entry_id = string.format('%d-0', offset)

-- External entries are no records of this format, and one past the log's end would stand in the middle of the log. If
-- one was deleted its id is still the stream's last, and XADD refuses ours. They are removed here, not in a script of
-- their own: a client that writes without a pause would always be back before this one.
local external = #redis.call('XRANGE', stream, string.format('(%d-0', base), '+', 'COUNT', 1) > 0
local reply = not external and redis.pcall('XADD', stream, entry_id, unpack(ARGV, first_field))
if external or type(reply) == 'table' and reply.err
    and (string.find(reply.err, '^ERR The ID ') or string.find(reply.err, '^ERR The stream ')) then
  local emptied
  expelled, emptied = expel_entries(stream, base, expelled_max)
  if not emptied then
    return {'EXPEL', '0', '0', now_ms, '0', expelled}
  elseif expelled == 0 then
    expelled = nil
  end
  reply = redis.pcall('XADD', stream, entry_id, unpack(ARGV, first_field))
end
if type(reply) == 'table' and reply.err then
  return reply
end

-- @include shared/append_end
