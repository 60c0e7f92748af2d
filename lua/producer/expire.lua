-- Forgets the idempotent producers of a partition that were silent for too long and have no transaction open: one step.
-- KEYS     1 state
-- ARGV     1 cursor ("0" begins)
--          2 most fields to look at
--          3 the caller's clock (ms), which is that of workers as the rows' times are
--          4 silence in ms
-- Returns  {next cursor ("0" when all rows were looked at), rows removed}
-- Errors   none
--
-- A producer with an open transaction stays, for its row says which marker ends that. A malformed row stays too: append reports
-- it as an error, and its content can still be seen then. A batch of the future came from a worker whose clock is ahead: its
-- producer is silent from now on.

local state = KEYS[1]
local cursor, count, now_ms, silence_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
-- @include shared/producer_row
local scanned = redis.call('HSCAN', state, cursor, 'MATCH', '[0-9]*', 'COUNT', count)
local rows, removed = scanned[2], 0
for at = 1, #rows, 2 do
  local row = rows[at + 1]
  local form = #row % 12
  local epoch, sequence, last_ms, number, first_open
  if form == 0 and #row >= 12 and #row <= 72 then
    epoch, sequence, last_ms = struct.unpack(row_format, row)
  elseif form == 4 and #row >= 28 and #row <= 88 then
    epoch, sequence, last_ms, number, first_open = struct.unpack(row_transaction_format, row)
  end
  if not last_ms or first_open and first_open >= 0 then
    -- Stays as it is.
  elseif last_ms > now_ms then
    local silent = struct.pack(row_format, epoch, sequence, now_ms) .. string.sub(row, 13)
    redis.pcall('HSET', state, rows[at], silent) -- not if memory is full
  elseif last_ms < now_ms - silence_ms then
    removed = removed + redis.call('HDEL', state, rows[at])
  end
end
return {scanned[1], removed}
