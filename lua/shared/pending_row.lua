-- A producer's row in the pending offsets of a group (group/commit_transaction).
-- Needs   pending, producer_id
-- Leaves  stored: the row, false if there is none, is_ended()
local stored = redis.call('HGET', pending, producer_id)
if stored then
  local readable, row = pcall(cjson.decode, stored)
  if not readable or type(row) ~= 'table' or type(row.rows) ~= 'table' or type(row.number) ~= 'number'
    or type(row.epoch) ~= 'number' then
    return redis.error_reply('KAFKA_STORAGE_ERROR ' .. pending .. ': the row of producer ' .. producer_id
      .. ' is malformed')
  end
  stored = row
end

local function is_ended(number)
  return stored and (number < stored.number or number == stored.number and not stored.open)
end
