-- Appends producer batches to a partition's log, at contiguous offsets, and announces them.
-- KEYS     stream, state, producers, index; if a batch is of a transaction also open, aborted
-- ARGV     topic id, leader epoch, channel, offset sequence bits (0: dense ids); then for each batch: producer id (-1: none), epoch, base
--          sequence, last sequence, record count, bytes as stored, largest timestamp, transaction ("0": none; "t<number>":
--          records of one, number 0 if it is not verified; "c<number>", "a<number>": the marker that commits or aborts it,
--          number 0 for the one that is open, -1 for the one that an earlier epoch has open), number of the arguments that
--          follow;
--          the number of fields that all its records have (2 to 4; 0: they differ), their names, and for each record its
--          values; if they differ, for each record the number of its arguments and these (field, value, field, value, ...)
-- Returns  {APPENDED, log start as responses report it, Redis' clock in ms, external entries that were renumbered; then for each batch: outcome, base offset, bytes
--          that ever came if a row of the index was written, else 0}, where the outcome is APPENDED, DUPLICATE (the base
--          offset is the one of the first time, 0 of a marker; nothing is written), VERIFY (it would open a transaction that
--          is not verified; nothing is written) or an error of this batch;
--          {RENUMBER}: nothing is written: run log/renumber, then this again
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER (a later leader epoch has begun), KAFKA_STORAGE_ERROR (a malformed
--          state); of one batch INVALID_PRODUCER_EPOCH (also a marker of number -1 if the open one has its epoch),
--          OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE (no transaction
--          while one is open; one that has ended, or not the open one), KAFKA_STORAGE_ERROR (a malformed producer,
--          offsets used up, open or aborted of another type)
--
-- Everything that can fail is asked before the first XADD, or is the first XADD: a script that fails later would leave
-- half a batch. What is included here is code in place, for a function costs every append its definition.

local stream, state, producers, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local topic_id, leader_epoch, channel, bits = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local first_batch, dense = 5, bits == 0

-- @include shared/index_steps
-- @include shared/entry_ids
-- @include shared/append_begin
-- @include shared/leader_epoch

-- What an append takes in itself, some ms of Redis at the worst; more is left to log/renumber, and another try.
local external_max, external_bytes_max = 2000, 4194304
local last_of_all = '18446744073709551615-18446744073709551615' -- no id comes after it, not even in a range
local renumbered, share_groups = 0, nil
-- Takes in external entries, once it is sure that something is appended; false if that is left to log/renumber.
local function take_in()
  if held[9] then
    return false
  end
  -- Exclusive of the last entry, not from the next offset on: between two milliseconds there is room for ids that no
  -- offset names.
  local external = redis.call('XRANGE', stream, '(' .. id_of_end(next_offset), '+', 'COUNT', 1)
  if external[1] then
-- @include shared/external_entry
-- @include shared/renumbering
    local moved, last_id = {}, nil
    repeat
      for _, entry in ipairs(external) do
        last_id = entry[1]
        local end_offset, size, timestamp = end_of_id(last_id), measure(entry[2], 1)
        if dense and (moved[1] or end_offset ~= next_offset + 1 or not timestamp) then
          local fields = entry[2]
          if #fields > arguments_max then
            return false
          end
          if not timestamp then
            timestamp = time_of(last_id, now_ms)
            fields[#fields + 1], fields[#fields + 2] = 'timestamp', timestamp
            size = size + #'timestamp' + #timestamp
          end
          moved[#moved + 1], end_offset = entry, next_offset + 1
        end
        if not end_offset or last_id == last_of_all or records - records_before == external_max
            or bytes - bytes_before + size > external_bytes_max then
          return false
        end
        timestamp = timestamp or time_of(last_id, now_ms)
        records, bytes = records + 1, bytes + size
        if tonumber(timestamp) > tonumber(largest) then
          largest = timestamp
        end
        if tonumber(timestamp) > tonumber(interval) then
          interval = timestamp
        end
        next_offset = end_offset
        first = first or next_offset - 1
      end
      -- The first came alone, the others as many at once as there is room for, of entries like those before.
      local average = math.max(1, (bytes - bytes_before) / (records - records_before))
      external = redis.call('XRANGE', stream, '(' .. last_id, '+', 'COUNT',
        math.max(1, math.min(100, math.floor(external_bytes_max / average))))
    until not external[1]
    if moved[1] then
      local end_offset, ids = next_offset - #moved, {}
      local last, added, deleted = stream_ids()
      if end_offset == 0 and deleted ~= '0-0' then
        return false
      end
      local others = {}
      for n, entry in ipairs(moved) do
        ids[n] = entry[1]
        if entry[1] ~= id_of_end(end_offset + n) then
          others[#others + 1] = entry[1]
        end
      end
      remove(ids, end_offset)
      set_back(end_offset, last, added - #moved, deleted, true)
      renumbered = #others
      forget(others)
      if renumbered > 0 then
        go_on_at(next_offset - renumbered)
      end
      for n, entry in ipairs(moved) do
        redis.call('XADD', stream, id_of_end(end_offset + n), unpack(entry[2]))
      end
    end
  end
  log_end = next_offset
  if not dense then
    next_offset = math.max(log_end, now_ms * 2 ^ bits)
  end
  return true
end
-- @include shared/append_check

local call, argv, offset = redis.call, ARGV, next_offset
answer[4] = renumbered
for n, at in ipairs(placed) do
  local left, shared_fields, arg = tonumber(argv[at + 4]), tonumber(argv[at + 9]), at + 10
  local field_1, field_2, field_3, field_4 = argv[at + 10], argv[at + 11], argv[at + 12], argv[at + 13]
  arg = arg + shared_fields
  offset = bases[n]
  while left > 0 do
    local run = dense and left or math.min(left, 2 ^ bits - offset % 2 ^ bits)
    local id = id_of_end(offset + 1)
    local run_id = string.match(id, '^%d+-') .. '*'
    for entry = 1, run do
      -- The first entry may be refused, if one above it was deleted whose id is still the stream's last. No look-up
      -- is as cheap as the refusal itself.
      local add = n == 1 and entry == 1 and offset == next_offset and redis.pcall or call
      local reply
      if shared_fields == 3 then
        reply = add('XADD', stream, id, field_1, argv[arg], field_2, argv[arg + 1], field_3, argv[arg + 2])
        arg = arg + 3
      elseif shared_fields == 2 then
        reply = add('XADD', stream, id, field_1, argv[arg], field_2, argv[arg + 1])
        arg = arg + 2
      elseif shared_fields == 4 then
        reply = add('XADD', stream, id, field_1, argv[arg], field_2, argv[arg + 1], field_3, argv[arg + 2],
          field_4, argv[arg + 3])
        arg = arg + 4
      else
        local size = tonumber(argv[arg])
        reply = add('XADD', stream, id, unpack(argv, arg + 1, arg + size))
        arg = arg + size + 1
      end
      if type(reply) == 'table' and reply.err then
        if string.find(reply.err, '^ERR The ID ') or string.find(reply.err, '^ERR The stream ') then
          return {'RENUMBER'}
        end
        return reply
      end
      id = run_id
    end
    offset = offset + run
    left = left - run
  end
-- @include shared/append_written
end

-- @include shared/append_end
