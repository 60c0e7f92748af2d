-- Forgets the idempotent producers of a partition that were silent for too long. One bounded step.
-- KEYS     producers
-- ARGV     cursor ("0" begins), most rows to look at, silence in ms
-- Returns  {next cursor ("0" when all rows were looked at), rows removed}
-- Errors   none
--
-- A producer's row is "<epoch> <ms of its last batch> ..." (see log/append). A row of another form stays: append reports
-- it as an error, and its content can still be seen then.

local producers = KEYS[1]
local cursor, count, silence_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local time = redis.call('TIME')
local before_ms = time[1] * 1000 + math.floor(time[2] / 1000) - silence_ms

local scanned = redis.call('HSCAN', producers, cursor, 'COUNT', count)
local rows, removed = scanned[2], 0
for index = 1, #rows, 2 do
  local last_ms = tonumber(string.match(rows[index + 1], '^%d+ (%d+) ') or '')
  if last_ms and last_ms < before_ms then
    removed = removed + redis.call('HDEL', producers, rows[index])
  end
end
return {scanned[1], removed}
