#!lua flags=allow-oom
-- Takes, renews or releases the lease of the keeper, or of the archiver, and returns its fencing token.
-- KEYS     lease, fence
-- ARGV     holder (unique per process), time to live in ms (0 releases the lease)
-- Returns  {1 if the caller holds the lease from now on else 0, the holder's fencing token or "0"}
-- Errors   none
--
-- A token is drawn when the lease gets a new holder, and is larger than every one before it. allow-oom: when memory is
-- full it is the keeper that frees some.

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
