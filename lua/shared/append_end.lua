-- The last part of an append, in place: state, producers and announcement, and the script's answer.
-- Needs   what the parts before it leave; offset (the log's end), channel, dense, new_epochs
-- The fields that change with nearly every append are set by one call.
local log_start = first or bases[1]
if placed[1] then
  local next_text = string.format('%d', offset)
  if dense then
    redis.call('HSET', state, 'next', next_text, 'bytes', string.format('%d', bytes), 'max_timestamp', largest,
      'interval', interval)
  else
    redis.call('HSET', state, 'next', next_text, 'bytes', string.format('%d', bytes), 'max_timestamp', largest,
      'interval', interval, 'records', string.format('%d', records))
  end
  if new_epochs then
    redis.call('HSET', state, 'epochs', new_epochs)
  end
  if not held[4] then
    redis.call('HSET', state, 'first', string.format('%d', log_start))
  end
  for producer_id, row in pairs(rows) do
    redis.call('HSET', producers, producer_id, row)
  end
  redis.call('SPUBLISH', channel, next_text)
end
-- What responses report as the start of the log; what is below the start in the lake is no part of it, wherever it still
-- lies.
answer[2] = string.format('%d', lake_start and lake_start < start and lake_start
  or math.max(start, log_start or 0, lake_start or 0))
return answer
