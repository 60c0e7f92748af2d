#!lua flags=allow-oom
-- Takes, renews or gives up the lease of the acting keeper, or archiver, and hands out its fencing token.
-- KEYS     lease, fence
-- ARGV     holder (unique per process), time to live in ms (0 gives the lease up)
-- Returns  {1 if the caller holds the lease from now on else 0, the holder's fencing token or "0"}
-- Errors   none
--
-- A token is handed out when the lease gets a new holder and is larger than every one before it. allow-oom:
-- where memory is full it is the keeper that makes room.

local lease, fence = KEYS[1], KEYS[2]
local holder, ttl_ms = ARGV[1], tonumber(ARGV[2])

local current = redis.call('GET', lease)

if ttl_ms == 0 then
  if current == holder then
    redis.call('DEL', lease)
  end
  return {0, '0'}
end

if current and current ~= holder then
  return {0, '0'}
end

redis.call('SET', lease, holder, 'PX', ttl_ms)
local token = current and redis.call('GET', fence)
if not token then
  token = string.format('%d', redis.call('INCR', fence))
end
return {1, token}
