-- The second part of an append, in place, for the n-th batch: may it be written, by idempotence (KIP-98, KIP-360) and by the
-- transactions of its producer (KIP-98, KIP-890)? Writes nothing, and cannot fail.
-- Needs   what shared/append_begin leaves; n
-- Leaves  the locals below: those of its head, producer ("": none), code and value (its verdict), row (its producer's, nil:
--         none) and what that says; kept_at: where the batches begin in the row
local epoch, sequence, count, size, stamp, kind, number, fields, arguments
epoch, sequence, count, size, stamp, kind, number, fields, arguments, head_at = unp('>i2I4I4I4i8Bi8BI4', heads, head_at)
local producer, code, value, row = argv[3 + n], APPENDED, 0, nil
local row_epoch, expected, last_ms, last_number, first_open, kept_at
if producer ~= '' then
  row = rows[producer] or held[2 + n]
  if row then
    local form = #row % 12
    if #row < 12 or #row > 72 + 4 * form or form ~= 0 and (form ~= 4 or #row < 28) then
      code = MALFORMED_PRODUCER
    else
      if form == 0 then
        row_epoch, expected, last_ms, kept_at = unp(row_format, row)
      else
        row_epoch, expected, last_ms, last_number, first_open, kept_at = unp(row_transaction_format, row)
        first_open = first_open >= 0 and first_open or nil
      end
      if epoch < row_epoch then
        code, value = INVALID_PRODUCER_EPOCH, row_epoch
      elseif kind < COMMIT and sequence ~= expected and epoch == row_epoch then
        local oldest = expected
        for at = kept_at, #row, 12 do
          local kept_count, kept_base = unp(batch_format, row, at)
          oldest = (oldest - kept_count) % sequences
          if oldest == sequence and kept_count == count then
            code, value = DUPLICATE, kept_base
            break
          end
        end
      end
    end
  end
  if kind > 0 and code == APPENDED then
    if kind >= COMMIT then
      if number == -1 and first_open and epoch == row_epoch then
        code, value = OPEN_BY_EPOCH, epoch
      end
      if number <= 0 then
        number = first_open and last_number or 0 -- whichever is open
      end
      if number == 0 or last_number and (number < last_number or number == last_number and not first_open) then
        code = DUPLICATE
      end
    elseif number == 0 then
      if not first_open or epoch > row_epoch then
        code = VERIFY
      end
    elseif last_number and (number < last_number or (number == last_number) ~= (first_open ~= nil)) then
      code, value = first_open and TRANSACTION_OPEN or TRANSACTION_ENDED, last_number
    end
    if code == APPENDED and not transactions and (kind >= COMMIT or not first_open) then
      transactions, aborts = {}, {}
      if type(redis.pcall('ZCARD', KEYS[4])) == 'table' then
        code, transactions = MALFORMED_OPEN, nil
      elseif type(redis.pcall('ZCARD', KEYS[5])) == 'table' then
        code, transactions = MALFORMED_ABORTED, nil
      end
    end
  end
  if row and code == APPENDED and kind < COMMIT then
    if epoch == row_epoch and sequence ~= expected or epoch > row_epoch and sequence ~= 0 then
      -- As in Kafka, also what was written so long ago that its offset is forgotten.
      code, value = OUT_OF_ORDER, epoch == row_epoch and expected or 0
    elseif kind == 0 and first_open then
      code, value = TRANSACTION_NOT_SENT, last_number
    end
  end
end
if memory_is_full and kind < COMMIT and code == APPENDED then
  code = MEMORY_FULL
end
