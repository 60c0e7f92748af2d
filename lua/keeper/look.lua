#!lua flags=no-writes
-- Reads who holds the lease of the keeper.
-- KEYS     1 lease
--          2 fence
-- ARGV     none
-- Returns  {the lease's holder or "", the last fencing token or "0"}
-- Errors   none

local lease, fence = KEYS[1], KEYS[2]

return {redis.call('GET', lease) or '', redis.call('GET', fence) or '0'}
