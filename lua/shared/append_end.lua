-- The last part of an append, in place: state, producers, transactions and announcement, and the script's answer.
-- Needs   what the parts before it leave; with transactions KEYS[4] (open) and KEYS[5] (aborted)
if written then
  end_text = end_text or string.format('%d', next_offset)
  if new_epochs then
    call('HSET', state, 'epochs', new_epochs)
  end
  local id, row = next(rows)
  if id and next(rows, id) then
    local changed = {'log', packed_log}
    for id, row in pairs(rows) do
      changed[#changed + 1], changed[#changed + 2] = id, row
    end
    call('HSET', state, unpack(changed))
  elseif id then
    call('HSET', state, 'log', packed_log, id, row)
  else
    call('HSET', state, 'log', packed_log)
  end
  if transactions and next(transactions) then
    local ended, smallest = {}, nil
    for id, opened_at in pairs(transactions) do
      if opened_at then
        call('ZADD', KEYS[4], string.format('%d', opened_at), id)
      else
        ended[#ended + 1] = id
      end
    end
    -- Ended ones are still in it: without the last of them the key would be gone, which a moving slot refuses.
    local opened = call('ZRANGE', KEYS[4], 0, #ended, 'WITHSCORES')
    for n = 1, #opened, 2 do
      smallest = smallest or transactions[opened[n]] ~= false and tonumber(opened[n + 1])
    end
    -- A reader of some rows is to know up to where no later one matters: what is open, or aborted by a later row, begins
    -- there.
    local stable = smallest or next_offset
    for n = #aborts, 1, -1 do
      local marker, id, from = unpack(aborts[n])
      call('ZADD', KEYS[5], string.format('%d', marker), string.format('%s:%d:%d', id, from, stable))
      stable = math.min(stable, from)
    end
    if aborts[1] then
      call('HSET', state, 'aborted', string.format('%d', aborts[#aborts][1]))
    end
    if smallest then
      call('HSET', state, 'open', string.format('%d', smallest))
    else
      call('HDEL', state, 'open')
    end
    if ended[1] then
      call('ZREM', KEYS[4], unpack(ended))
    end
  end
  call('SPUBLISH', stream, end_text) -- the channel has the stream's name
end
-- What responses report as the start of the log; what is below the start in the lake is no part of it, wherever it still
-- lies.
local log_start = lake_start >= 0 and lake_start < start and lake_start or math.max(start, first, lake_start)
if batches == 1 then
  return pack('>BI4I8I8BI8', 0, moved, log_start, row_bytes, last_code, last_value)
end
return pack('>BI4I8I8', 0, moved, log_start, row_bytes) .. answer
