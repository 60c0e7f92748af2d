#!lua
-- Writes into a list, of groups or of transactional ids, when the keeper has to look at which: ZADD that works when memory
-- is full.
-- KEYS     1 list
-- ARGV     1 option of ZADD: CH (set, and list unlisted names), LT (the same if it is earlier than the listed time)
--            or XX (only listed names)
--          2 and on: for each name: its time (ms); the name; 1,000 at most
-- Returns  how many were listed or changed
-- Errors   none
--
-- Where memory is full only the times of what is listed change: the ends of sessions and of transactions free some.

-- @include shared/memory_is_full

if memory_is_full and ARGV[1] ~= 'XX' then
  return redis.call('ZADD', KEYS[1], 'XX', unpack(ARGV))
end
return redis.call('ZADD', KEYS[1], unpack(ARGV))
