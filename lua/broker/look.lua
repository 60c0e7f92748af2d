#!lua flags=no-writes
-- Reads all registered brokers as of one moment.
-- KEYS     1 brokers
-- ARGV     none
-- Returns  {the time in ms, broker id, its row (JSON), broker id, its row, ...}
-- Errors   none

local brokers = KEYS[1]

-- @include shared/clock
local answer = redis.call('HGETALL', brokers)
table.insert(answer, 1, string.format('%d', now_ms))
return answer
