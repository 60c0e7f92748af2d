-- The second half of an append, in place: state, producer and announcement, and the script's answer.
-- Wants   what append_begin leaves, base (the first offset of the batch), offset (the one just past it), batch_bytes,
--         max_timestamp, channel
first = first or base
redis.call('HSET', state, 'next', string.format('%d', offset), 'first', string.format('%d', first),
  'bytes', string.format('%d', bytes + batch_bytes),
  'max_timestamp', tonumber(max_timestamp) > largest and max_timestamp or held[6])
if producer_id ~= '-1' then
  if #batches == batches_kept then
    table.remove(batches, 1)
  end
  batches[#batches + 1] = string.format('%d-%d@%d', base_sequence, last_sequence, base)
  redis.call('HSET', producers, producer_id,
    string.format('%d %d %s', epoch, now_ms, table.concat(batches, ' ')))
end
redis.call('PUBLISH', channel, string.format('%d', offset))
return {'APPENDED', string.format('%d', base), string.format('%d', math.max(start, first)), now_ms}
