-- Forgets the idempotent producers of a partition that were silent for too long and have no transaction open. One bounded step.
-- KEYS     producers
-- ARGV     cursor ("0" begins), most rows to look at, silence in ms
-- Returns  {next cursor ("0" when all rows were looked at), rows removed}
-- Errors   none
--
-- A producer's row is "<epoch> <ms of its last batch> [#<number>[@<first>]] ..." (see shared/append_check). One with an open
-- transaction stays, for the number says which marker ends it. A row of another form stays too: append reports it as an
-- error, and its content can still be seen then. A batch of the future came while the clock was ahead: its producer is
-- silent from now on.

local producers = KEYS[1]
local cursor, count, silence_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- @include shared/clock

local scanned = redis.call('HSCAN', producers, cursor, 'COUNT', count)
local rows, removed = scanned[2], 0
for index = 1, #rows, 2 do
  local epoch, last_ms, rest = string.match(rows[index + 1], '^(%d+) (%d+)( .+)')
  if not epoch or string.find(rest, '^ #%d+@') then
    -- Stays as it is.
  elseif tonumber(last_ms) > now_ms then
    redis.pcall('HSET', producers, rows[index], string.format('%s %d%s', epoch, now_ms, rest)) -- not if memory is full
  elseif tonumber(last_ms) < now_ms - silence_ms then
    removed = removed + redis.call('HDEL', producers, rows[index])
  end
end
return {scanned[1], removed}
