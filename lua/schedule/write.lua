#!lua
-- Writes into a list, of groups or of transactional ids, when the keeper has to look at which: ZADD that works when memory
-- is full.
-- KEYS     list
-- ARGV     how, as ZADD has it: CH (set, and list what is not listed), LT (the same if it is earlier than the time there) or
--          XX (only what is listed); then for each its time (ms) and its name; 1,000 at most
-- Returns  how many were listed or changed
-- Errors   none
--
-- Where memory is full only the times of what is listed change: the ends of sessions and of transactions free some.

-- @include shared/memory_is_full

if memory_is_full and ARGV[1] ~= 'XX' then
  return redis.call('ZADD', KEYS[1], 'XX', unpack(ARGV))
end
return redis.call('ZADD', KEYS[1], unpack(ARGV))
