-- The second half of an append, in place: state, index, producer and announcement, and the script's answer.
-- Needs   what append_begin leaves (`next_offset`, `first`, `bytes`, `records`, `largest` and `interval` with what the
--         script took in), index, records_per_row, bytes_per_row, base (the first offset of the batch), offset (the one
--         just past it), batch_bytes (as stored), max_timestamp, channel, dense (offsets count records),
--         expelled, new_epochs
local stamp = tonumber(max_timestamp)
if stamp > tonumber(largest) then
  largest = max_timestamp
end
if stamp > tonumber(interval) then
  interval = max_timestamp
end
records, bytes = records + count, bytes + batch_bytes
local next_text, bytes_text = string.format('%d', offset), string.format('%d', bytes)
local row_bytes = '0'
if math.floor(records / records_per_row) > math.floor(records_before / records_per_row)
    or math.floor(bytes / bytes_per_row) > math.floor(bytes_before / bytes_per_row) then
  if redis.call('EXISTS', index) == 0 then
    -- The first row stands for all before it; if it is not the first one, the others were deleted.
    interval = largest
    if records_before >= records_per_row or bytes_before >= bytes_per_row then
      redis.call('HSET', state, 'reindex', '1')
    end
  end
  -- The batch is written: if the index is a key of another type and takes no row, the keeper rebuilds it.
  local row = string.format('%d:%s:%s:%s', records, bytes_text, largest, interval)
  if type(redis.pcall('ZADD', index, next_text, row)) == 'number' then
    row_bytes, interval = bytes_text, '-1'
  end
end
if dense then
  redis.call('HSET', state, 'next', next_text, 'bytes', bytes_text, 'max_timestamp', largest, 'interval', interval)
else
  redis.call('HSET', state, 'next', next_text, 'bytes', bytes_text, 'max_timestamp', largest, 'interval', interval,
    'records', string.format('%d', records))
end
if new_epochs then
  redis.call('HSET', state, 'epochs', new_epochs)
end
if not held[4] then
  first = first or base
  redis.call('HSET', state, 'first', string.format('%d', first))
end
if producer_id ~= '-1' then
  if #batches == batches_kept then
    table.remove(batches, 1)
  end
  batches[#batches + 1] = string.format('%d-%d@%d', base_sequence, last_sequence, base)
  redis.call('HSET', producers, producer_id,
    string.format('%d %d %s', epoch, now_ms, table.concat(batches, ' ')))
end
redis.call('SPUBLISH', channel, next_text)
return {'APPENDED', string.format('%d', base), reported(first), now_ms, row_bytes, expelled}
