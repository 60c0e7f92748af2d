#!lua flags=allow-oom
-- Gives one caller at a time the right to compute the target assignment of a group of the consumer protocol (KIP-848).
-- KEYS     group
-- ARGV     token of the caller, ms after which the right ends
-- Returns  {1 if the caller has the right, else 0, group epoch, assignment epoch}
-- Errors   GROUP_ID_NOT_FOUND
--
-- Nobody gets it while the target assignment is that of the group epoch. allow-oom: a rebalance must work when memory is full.

-- @include shared/clock

local group = KEYS[1]
local token, lease_ms = ARGV[1], tonumber(ARGV[2])

local held = redis.call('HMGET', group, 'type', 'generation', 'assignment_epoch', 'assigner', 'assigner_until')
if held[1] ~= 'consumer' then
  return redis.error_reply('GROUP_ID_NOT_FOUND there is no such group of the consumer protocol')
end
local generation, assignment_epoch = tonumber(held[2]), tonumber(held[3])
if generation <= assignment_epoch or held[4] and held[4] ~= token and now_ms < tonumber(held[5]) then
  return {0, generation, assignment_epoch}
end
redis.call('HSET', group, 'assigner', token, 'assigner_until', string.format('%d', now_ms + lease_ms))
return {1, generation, assignment_epoch}
