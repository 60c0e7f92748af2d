-- The last part of an append, in place: state, producers and announcement, and the script's answer.
-- Needs   what the parts before it leave; offset (the log's end), channel, dense, new_epochs; with transactions KEYS[5] (open)
--         and KEYS[6] (aborted)
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
  if transactions then
    local ended, smallest = {}, nil
    for producer_id, opened_at in pairs(transactions) do
      if opened_at then
        redis.call('ZADD', KEYS[5], string.format('%d', opened_at), producer_id)
      else
        ended[#ended + 1] = producer_id
      end
    end
    -- Those that have ended are still in it: without the last of them it would be gone, which a moving slot refuses.
    local opened = redis.call('ZRANGE', KEYS[5], 0, #ended, 'WITHSCORES')
    for n = 1, #opened, 2 do
      smallest = smallest or transactions[opened[n]] ~= false and tonumber(opened[n + 1])
    end
    -- A reader of some rows is to know up to where no later one matters: what is open, or aborted by a later row, begins
    -- there.
    local stable = smallest or offset
    for n = #aborts - 1, 1, -2 do
      redis.call('ZADD', KEYS[6], aborts[n], string.format('%s:%d', aborts[n + 1], stable))
      stable = math.min(stable, tonumber(string.match(aborts[n + 1], '%d+$')))
    end
    if aborts[1] then
      redis.call('HSET', state, 'aborted', aborts[#aborts - 1])
    end
    if smallest then
      redis.call('HSET', state, 'open', string.format('%d', smallest))
    else
      redis.call('HDEL', state, 'open')
    end
    if ended[1] then
      redis.call('ZREM', KEYS[5], unpack(ended))
    end
  end
  redis.call('SPUBLISH', channel, next_text)
end
-- What responses report as the start of the log; what is below the start in the lake is no part of it, wherever it still
-- lies.
answer[2] = string.format('%d', lake_start and lake_start < start and lake_start
  or math.max(start, log_start or 0, lake_start or 0))
return answer
