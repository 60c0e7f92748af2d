-- Appends producer batches, each whole as one entry of a partition's log in format batch, and announces them.
-- KEYS     1 stream
--          2 state
--          3 index
--          4 open: the transactions that are open, if a batch is of a transaction
--          5 aborted, as 4
-- ARGV     1 topic id
--          2 leader epoch
--          3 heads: >I6B sender's clock (ms), 0; then for each batch >i2I4I4I4i8Bi8BI4
--            producer epoch, first sequence, records, bytes as stored, largest timestamp (ms, at most 2^53)
--            kind: 0 data, 1 data of a transaction, 2 commit marker, 3 abort marker
--            number of the transaction (0: not verified; of a marker 0: the one that is open, -1: the one that an earlier
--            epoch has open)
--            0; how many of the arguments after the producer ids are its own
--          4 and on: producer id of each batch ("": none)
--          then for each batch: its bytes; the codec that compresses them at rest, if one does
-- Returns  >BI4I8I8 0, external entries that were removed, log start as responses report it, bytes that ever came if a row of the
--          index was written, else 0; then for each batch >BI8, its verdict (shared/append_verdicts) and a value: the base
--          offset; of an error what was expected; or
--          >BI4 1, external entries that were removed: nothing is appended, for there are more than one step removes: run
--          log/expel, then this again
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER (a later leader epoch has begun), KAFKA_STORAGE_ERROR (a malformed
--          state, no stream)
--
-- Offsets are dense from 0, and the entry's id is "0-<offset just past the batch>": the batch that holds an offset is the first
-- entry after it. Nothing after the first XADD can fail: a script that fails there would leave entries without their state.

local expelled_max, dense, share_groups = 1000, true, nil -- as many as a step of log/expel removes
-- @include shared/append_verdicts
-- @include shared/producer_row
-- @include shared/memory_is_full
-- @include shared/append_begin
-- @include shared/log_fields
-- @include shared/index_steps
-- @include shared/leader_epoch

for n = 1, batches do
-- @include shared/append_decide
  if code == APPENDED and count > exact_max - next_offset then
    code = USED_UP
  end
  if code == APPENDED then
    -- External entries are no records of this format. One past the log's end makes the stream longer than it was, or makes
    -- Redis refuse ours, also if it is deleted. They are removed here, not in a script of their own: a client that writes
    -- without a pause would always be back before this one.
    local external, reply = false, nil
    if not written then
      local length = call('XLEN', stream)
      external = length ~= entries and call('XRANGE', stream, string.format('(0-%d', next_offset), '+', 'COUNT', 1)[1]
      entries = length
    end
    repeat
      if external then
        local bits, removed, lowest = -1, nil, nil
-- @include shared/entry_ids
-- @include shared/renumbering
-- @include shared/expel_entries
        removed, lowest = expel_entries(next_offset, expelled_max)
        moved = moved + removed
        if not lowest then
          return pack('>BI4', 1, moved)
        end
        next_offset, entries = lowest, call('XLEN', stream)
      end
      end_text = string.format('%d', next_offset + count)
      local id = '0-' .. end_text
      if arguments == 1 then
        reply = redis.pcall('XADD', stream, 'NOMKSTREAM', id, 'batch', argv[arg])
      else
        reply = redis.pcall('XADD', stream, 'NOMKSTREAM', id, 'batch', argv[arg], 'korvet.encoding', argv[arg + 1])
      end
-- @include shared/append_refused
    until type(reply) == 'string'
    local offset = next_offset
    entries, value = entries + 1, offset
-- @include shared/append_written
-- @include shared/index_row
  end
  arg, last_code, last_value = arg + arguments, code, value
  if batches > 1 then
    answer = answer .. pack('>BI8', code, value)
  end
end

last_epoch = leader_epoch
-- @include shared/log_packed
-- @include shared/append_end
