#!lua flags=allow-oom
-- Forgets the ended transactions of producers that were silent for too long in a group. One bounded step.
-- KEYS     1 pending
-- ARGV     1 cursor ("0" begins)
--          2 most rows to look at
--          3 silence in ms
-- Returns  {next cursor ("0" when all rows were looked at), rows removed}
-- Errors   none
--
-- An open transaction stays, and a row of another form than group/end_transaction writes. allow-oom: what frees memory must
-- work when there is none left.

-- @include shared/clock

local pending = KEYS[1]
local cursor, count, silence_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local scanned = redis.call('HSCAN', pending, cursor, 'COUNT', count)
local rows, removed = scanned[2], 0
for at = 1, #rows, 2 do
  local ended_ms = tonumber(string.match(rows[at + 1], '"open":false,"ms":(%d+),"rows":{}}$') or '')
  if ended_ms and ended_ms < now_ms - silence_ms then
    removed = removed + redis.call('HDEL', pending, rows[at])
  end
end
return {scanned[1], removed}
