#!lua flags=allow-oom
-- Takes, renews or releases the lease of the keeper, or of the archiver, and returns its fencing token.
-- KEYS     1 lease
--          2 fence
-- ARGV     1 holder (unique per process)
--          2 time to live in ms (0 releases the lease)
-- Returns  {1 if the caller holds the lease from now on else 0, the holder's fencing token or "0"}
-- Errors   none
--
-- One that lasts longer than it could by this clock was taken before the clock was set back: it ends after twice the time
-- that the caller would have it. A token is drawn when the lease gets a new holder, and is larger than every one before it. allow-oom: when memory is
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
  if redis.call('PTTL', lease) > 2 * ttl_ms then -- half of it more than that of a holder with other settings
    redis.call('SET', lease, current, 'PX', 2 * ttl_ms)
  end
  return {0, '0'}
end

redis.call('SET', lease, holder, 'PX', ttl_ms)
local token = current and redis.call('GET', fence)
if not token then
  token = string.format('%d', redis.call('INCR', fence))
end
return {1, token}
