#!lua flags=allow-oom
-- Writes a part of what the members of a classic group own, before the group becomes one of the consumer protocol (KIP-848).
-- KEYS     1 group
--          2 assignments
-- ARGV     1 token of the caller
--          2 revision of the group as the caller has read it
--          3 1 with the first part (else 0)
--          4 and on: fields and their values
-- Returns  1, or 0 if the group has changed or another caller has begun, and nothing is done
-- Errors   TRYAGAIN (shared/slot_stays)
--
-- A classic group does not look at it. allow-oom: a rebalance must work when memory is full.

local group, assignments = KEYS[1], KEYS[2]
local token, revision, is_first, first = ARGV[1], ARGV[2], ARGV[3] == '1', 4

-- @include shared/slot_stays

local held = redis.call('HMGET', group, 'type', 'revision')
if held[1] or (held[2] or '') ~= revision then
  return 0
end
if is_first then
  redis.call('DEL', assignments)
elseif redis.call('HGET', assignments, 'token') ~= token then
  return 0
end
redis.call('HSET', assignments, 'token', token, unpack(ARGV, first))
return 1
