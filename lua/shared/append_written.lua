-- The third part of an append, in place, for the n-th batch once its entries are written: the row of its producer, and what
-- the log holds then.
-- Needs   what the parts before it leave; offset (its base), dense (offsets count records)
-- Leaves  next_offset (the offset just past it), first, bytes, records, largest, interval, rows, transactions, aborts
if producer ~= '' then
  if kind == 0 and not last_number then
    rows[producer] = pack(row_batch_format, epoch, (sequence + count) % sequences, sent_ms, count, offset)
      .. (epoch == row_epoch and string.sub(row, 13, 60) or '') -- KIP-98: five batches are in flight at most
  else
    local kept = epoch == row_epoch and string.sub(row, kept_at) or ''
    if kind < COMMIT then
      expected = (sequence + count) % sequences
      kept = pack(batch_format, count, offset) .. string.sub(kept, 1, 48)
    elseif epoch ~= row_epoch then
      expected = 0
    end
    if kind == TRANSACTION and not first_open then
      last_number, first_open = number, offset
      transactions[producer] = next_offset
    elseif kind >= COMMIT then
      if first_open then
        transactions[producer] = false
        if kind == ABORT then
          aborts[#aborts + 1] = {offset, producer, first_open}
        end
      end
      last_number, first_open = number, nil
    end
    rows[producer] = pack(row_transaction_format, epoch, expected, sent_ms, last_number, first_open or -1) .. kept
  end
end
if first < 0 then
  first = offset
end
written, next_offset, bytes = true, offset + count, bytes + size
records = dense and next_offset or records + count
if stamp > largest then
  largest = stamp
end
if stamp > interval then
  interval = stamp
end
