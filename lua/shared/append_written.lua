-- The third part of an append, in place, for each batch that was written: what the log holds then, and a row of the index.
-- Needs   what append_begin and append_check leave; state, index, records_per_row, bytes_per_row; n (which of the placed
--         batches), at (where it stands in ARGV), offset (the one just past it)
-- Leaves  largest, interval, records, bytes, records_before and bytes_before as they are after it
local stamp = tonumber(ARGV[at + 6])
if stamp > tonumber(largest) then
  largest = ARGV[at + 6]
end
if stamp > tonumber(interval) then
  interval = ARGV[at + 6]
end
records, bytes = records + tonumber(ARGV[at + 4]), bytes + tonumber(ARGV[at + 5])
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
  local row = string.format('%d:%d:%s:%s', records, bytes, largest, interval)
  if type(redis.pcall('ZADD', index, string.format('%d', offset), row)) == 'number' then
    answer[places[n] + 2], interval = string.format('%d', bytes), '-1'
  end
end
records_before, bytes_before = records, bytes
