#!lua flags=allow-oom
-- Takes from a list what the keeper has to look at, the most urgent first; each comes again after some time.
-- KEYS     1 list
-- ARGV     1 how many at most
--          2 ms after which they come again
-- Returns  {now (ms), when they come again (ms), and for each its name and its time in the list as it was}
-- Errors   none
--
-- No two callers get the same name at once. One that dies before it has looked delays what it took, and loses nothing.
-- allow-oom: ends of sessions and of transactions free memory.

-- @include shared/clock

local list, most, pause_ms = KEYS[1], ARGV[1], tonumber(ARGV[2])
local again = now_ms + pause_ms
local due = redis.call('ZRANGEBYSCORE', list, '-inf', string.format('%d', now_ms), 'WITHSCORES', 'LIMIT', 0, most)
for at = 1, #due, 2 do
  redis.call('ZADD', list, string.format('%d', again), due[at])
end
return {now_ms, again, unpack(due)}
