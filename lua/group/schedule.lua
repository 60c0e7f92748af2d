#!lua flags=allow-oom
-- Writes into the list of groups when the keeper has to look at which: ZADD that works when memory is full.
-- KEYS     groups
-- ARGV     how, as ZADD has it: CH (set, and list what is not listed), LT (the same if it is earlier than the time there) or
--          XX (only what is listed); then for each group its time (ms) and its name; 1,000 at most
-- Returns  how many were listed or changed
-- Errors   none
--
-- allow-oom: consumers go on when memory is full, and the ends of their sessions free some.

return redis.call('ZADD', KEYS[1], unpack(ARGV))
