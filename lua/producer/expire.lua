-- Forgets the idempotent producers of a partition that were silent for too long and have no transaction open. One bounded step.
-- KEYS     producers
-- ARGV     cursor ("0" begins), most rows to look at, silence in ms
-- Returns  {next cursor ("0" when all rows were looked at), rows removed}
-- Errors   none
--
-- A producer's row is "<epoch> <ms of its last batch> [#<number>[@<first>]] ..." (see shared/append_check). One with an open
-- transaction stays, for the number says which marker ends it. A row of another form stays too: append reports it as an
-- error, and its content can still be seen then.

local producers = KEYS[1]
local cursor, count, silence_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local time = redis.call('TIME')
local before_ms = time[1] * 1000 + math.floor(time[2] / 1000) - silence_ms

local scanned = redis.call('HSCAN', producers, cursor, 'COUNT', count)
local rows, removed = scanned[2], 0
for index = 1, #rows, 2 do
  local row = rows[index + 1]
  local last_ms = tonumber(string.match(row, '^%d+ (%d+) ') or '')
  if last_ms and last_ms < before_ms and not string.find(row, '^%d+ %d+ #%d+@') then
    removed = removed + redis.call('HDEL', producers, rows[index])
  end
end
return {scanned[1], removed}
