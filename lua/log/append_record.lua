-- Appends producer batches, each record as one entry of a partition's log in format record, and announces them.
-- KEYS     1 stream
--          2 state
--          3 index
--          4 open: the transactions that are open, if a batch is of a transaction
--          5 aborted, as 4
-- ARGV     1 topic id
--          2 leader epoch
--          3 heads, as log/append_batch takes them, but for: in the place of the first 0 the offset sequence bits (0: dense
--            ids), in that of the second the number of fields that all records of the batch have (2 to 4; 0: they differ)
--          4 and on: producer id of each batch ("": none), then for each the names of these fields, and for each record its values;
--            if they differ, for each record the number of its arguments and these (field, value, field, value, ...)
-- Returns  as log/append_batch does, of external entries those that came to a new offset; >BI4, 1 and 0: nothing is written:
--          run log/renumber, then this again
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, as log/append_batch has them
--
-- Nothing after the first XADD can fail: a script that fails there would leave half a batch.

local share_groups
-- @include shared/append_verdicts
-- @include shared/producer_row
-- @include shared/memory_is_full
-- @include shared/append_begin
-- @include shared/log_fields
-- @include shared/index_steps
-- @include shared/leader_epoch
local dense, width = bits == 0, 2 ^ bits

for n = 1, batches do
-- @include shared/append_decide
  local offset, left, values_at = next_offset, count, arg + fields
  local field_1, field_2, field_3, field_4 = argv[arg], argv[arg + 1], argv[arg + 2], argv[arg + 3]
  -- What other clients have added past the log's end comes before these records. With dense ids it makes Redis refuse the
  -- first of them, also if it is deleted; an id that is a time may lie behind that of the external entry.
  local external, earliest = false, 0
  if code == APPENDED and not written then
    if moving == 1 then
      return pack('>BI4', 1, 0)
    elseif not dense then
-- @include shared/clock
      earliest = now_ms * width
      -- Exclusive of the entry before: ids that name no offset lie between two milliseconds.
      local ms = math.floor((next_offset - 1) / width)
      local last_id = next_offset > 0 and string.format('(%d-%d', ms, next_offset - 1 - ms * width) or '-'
      external = call('XRANGE', stream, last_id, '+', 'COUNT', 1)[1] ~= nil
    end
    local reply
    repeat
      if external then
-- @include shared/entry_ids
-- @include shared/clock
-- @include shared/external_entry
-- @include shared/renumbering
-- @include shared/take_in
      end
      local id
      if dense then
        offset = next_offset
        id = string.format('0-%d', offset + 1)
      else
        offset = math.max(next_offset, earliest)
        id = string.format('%d-%d', math.floor(offset / width), offset % width)
      end
      if count > exact_max - offset then
        break
      end
      if fields == 2 then
        reply = redis.pcall('XADD', stream, 'NOMKSTREAM', id, field_1, argv[values_at], field_2, argv[values_at + 1])
      elseif fields == 3 then
        reply = redis.pcall('XADD', stream, 'NOMKSTREAM', id, field_1, argv[values_at], field_2, argv[values_at + 1],
          field_3, argv[values_at + 2])
      elseif fields == 4 then
        reply = redis.pcall('XADD', stream, 'NOMKSTREAM', id, field_1, argv[values_at], field_2, argv[values_at + 1],
          field_3, argv[values_at + 2], field_4, argv[values_at + 3])
      else
        reply = redis.pcall('XADD', stream, 'NOMKSTREAM', id, unpack(argv, values_at + 1, values_at + argv[values_at]))
      end
-- @include shared/append_refused
    until type(reply) == 'string'
    if reply then
      left, values_at = left - 1, values_at + (fields > 0 and fields or argv[values_at] + 1)
    end
  end
  if code == APPENDED and count > exact_max - offset then
    code = USED_UP
  elseif code == APPENDED then
    local record = offset + count - left
    while left > 0 do
      local run, id, rest = left, '0-*', '0-*'
      if not dense then
        local ms = math.floor(record / width)
        run, id = math.min(left, width - record % width), string.format('%d-%d', ms, record % width)
        rest = string.format('%d-*', ms)
      end
      for _ = 1, run do
        if fields == 2 then
          call('XADD', stream, id, field_1, argv[values_at], field_2, argv[values_at + 1])
          values_at = values_at + 2
        elseif fields == 3 then
          call('XADD', stream, id, field_1, argv[values_at], field_2, argv[values_at + 1], field_3, argv[values_at + 2])
          values_at = values_at + 3
        elseif fields == 4 then
          call('XADD', stream, id, field_1, argv[values_at], field_2, argv[values_at + 1], field_3, argv[values_at + 2],
            field_4, argv[values_at + 3])
          values_at = values_at + 4
        else
          local last = values_at + argv[values_at]
          call('XADD', stream, id, unpack(argv, values_at + 1, last))
          values_at = last + 1
        end
        id = rest
      end
      left, record = left - run, record + run
    end
    value = offset
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
