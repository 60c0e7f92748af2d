#!lua flags=allow-oom
-- Takes note that a member of a streams group with an endpoint has other tasks (KIP-1071).
-- KEYS     1 group
-- ARGV     none but that of shared/lease
-- Returns  the new epoch of the endpoints, 0 if there is no such group, and nothing is done
-- Errors   STALE_BROKER_EPOCH (shared/lease), KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- allow-oom: applications run on when memory is full.

-- @include shared/lease

local group = KEYS[1]
local held = redis.pcall('HMGET', group, 'type', 'endpoints')
if held.err then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. group .. ': ' .. held.err)
elseif held[1] ~= 'streams' then
  return 0
elseif not string.match(held[2] or '0', '^%d+$') then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. group .. ': the field endpoints is no number')
end
return redis.call('HINCRBY', group, 'endpoints', 1)
