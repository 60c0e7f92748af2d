#!lua flags=no-writes
-- Reads who holds the lease of the keeper.
-- KEYS     lease
-- ARGV     none
-- Returns  the lease's holder or ""
-- Errors   none

return redis.call('GET', KEYS[1]) or ''
