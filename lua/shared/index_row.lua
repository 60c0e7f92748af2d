-- Writes a row of the index, in place, once records or bytes that ever came have crossed a multiple of its distances.
-- Needs   state, index, shared/index_steps, what shared/log_fields leaves; records_before and bytes_before
-- Leaves  row_bytes (bytes if a row was written), interval, records_before and bytes_before for the next time
if records % records_per_row < records - records_before or bytes % bytes_per_row < bytes - bytes_before then
  if redis.call('EXISTS', index) == 0 then
    -- The rows that were there are deleted: this one stands for all before it, until the keeper has rebuilt them.
    interval = largest
    redis.call('HSET', state, 'reindex', '1')
  end
  -- If the index is a key of another type and takes no row, the keeper rebuilds it.
  local row = string.format('%d:%d:%d:%d', records, bytes, largest, interval)
  if type(redis.pcall('ZADD', index, string.format('%d', next_offset), row)) == 'number' then
    row_bytes, interval = bytes, -1
  end
end
records_before, bytes_before = records, bytes
