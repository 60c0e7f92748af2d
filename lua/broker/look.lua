#!lua flags=no-writes
-- Reads all registered brokers and the holder of the keeper's lease, as of one moment.
-- KEYS     brokers, lease of the keeper
-- ARGV     none
-- Returns  {the time in ms, the lease's holder or "", broker id, its row (JSON), broker id, its row, ...}
-- Errors   none

local brokers, lease = KEYS[1], KEYS[2]

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local answer = redis.call('HGETALL', brokers)
table.insert(answer, 1, redis.call('GET', lease) or '')
table.insert(answer, 1, string.format('%d', now_ms))
return answer
