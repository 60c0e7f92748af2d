-- Appends producer batches, each whole as one entry of a partition's log in format batch, and announces them.
-- KEYS     stream, state, producers, index; if a batch is of a transaction also open, aborted
-- ARGV     topic id, leader epoch, channel; then for each batch: producer id (-1: none), epoch, base sequence, last sequence,
--          record count, bytes as stored, largest timestamp, transaction (as log/append takes it), number of the arguments
--          that follow; the entry's fields and values
-- Returns  {APPENDED, log start as responses report it, Redis' clock in ms, external entries that were removed; then for each
--          batch: outcome, base offset, bytes that ever came if a row of the index was written, else 0}, where the outcome is
--          APPENDED, DUPLICATE (the base offset is the one of the first time, 0 of a marker; nothing is written), VERIFY (it
--          would open a transaction that is not verified; nothing is written) or an error of this batch;
--          {EXPEL, external entries that were removed}: nothing is appended, there are more external entries than one step
--          removes: run log/expel, then this again
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER (a later leader epoch has begun), KAFKA_STORAGE_ERROR (a malformed
--          state); of one batch INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER,
--          INVALID_TXN_STATE, KAFKA_STORAGE_ERROR, each as of log/append
--
-- Offsets are dense from 0, and the entry's id is "0-<offset just past the batch>": the batch that holds an offset is
-- the first entry after it. Everything that can fail is asked before the first XADD, or is the first XADD.

local stream, state, producers, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local topic_id, leader_epoch, channel = ARGV[1], ARGV[2], ARGV[3]
local first_batch, bits, dense, take_in, share_groups = 4, -1, true, nil, nil
local expelled_max = 1000 -- as many as a step of log/expel removes

-- @include shared/index_steps
-- @include shared/entry_ids
-- @include shared/append_begin
-- @include shared/leader_epoch
-- @include shared/append_check

local offset = next_offset
for n, at in ipairs(placed) do
  offset = bases[n] + tonumber(ARGV[at + 4])
  local entry_id, last = id_of_end(offset), at + 8 + tonumber(ARGV[at + 8])
  if n > 1 then
    redis.call('XADD', stream, entry_id, unpack(ARGV, at + 9, last))
  else
    -- External entries are no records of this format, and one past the log's end would stand in the middle of the log.
    -- If one was deleted its id is still the stream's last, and XADD refuses ours. They are removed here, not in a script
    -- of their own: a client that writes without a pause would always be back before this one.
    local external = #redis.call('XRANGE', stream, '(' .. id_of_end(next_offset), '+', 'COUNT', 1) > 0
    local reply = not external and redis.pcall('XADD', stream, entry_id, unpack(ARGV, at + 9, last))
    if external or type(reply) == 'table' and reply.err
        and (string.find(reply.err, '^ERR The ID ') or string.find(reply.err, '^ERR The stream ')) then
-- @include shared/renumbering
-- @include shared/expel_entries
      local expelled, lowest = expel_entries(next_offset, expelled_max)
      if lowest ~= next_offset then
        return {'EXPEL', expelled}
      end
      answer[4] = expelled
      reply = redis.pcall('XADD', stream, entry_id, unpack(ARGV, at + 9, last))
    end
    if type(reply) == 'table' and reply.err then
      return reply
    end
  end
-- @include shared/append_written
end

-- @include shared/append_end
