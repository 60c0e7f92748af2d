-- The offsets that open transactions are to commit for a group (group/commit_transaction).
-- Needs   pending, the key
-- Leaves  drop_pending(): takes out those of which is_dropped(stream, row) is true, and returns whether any is left; a row of
--         a producer that cannot be read stays as it is
local function drop_pending(is_dropped)
  local some_left, open, producers = false, {}, redis.call('HGETALL', pending)
  for at = 1, #producers, 2 do
    local readable, row = pcall(cjson.decode, producers[at + 1])
    if readable and type(row) == 'table' and row.open and type(row.rows) == 'table' then
      open[producers[at]] = row
    end
  end
  for producer_id, row in pairs(open) do
    local left, dropped = {}, false
    for stream, text in pairs(row.rows) do
      if is_dropped(stream, text) then
        dropped = true
      else
        left[stream], some_left = text, true
      end
    end
    if dropped then
      row.rows = left
      redis.call('HSET', pending, producer_id, cjson.encode(row))
    end
  end
  return some_left
end
