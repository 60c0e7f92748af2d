#!lua flags=allow-oom
-- Gives one caller at a time the right to compute the target assignment of a group (KIP-848, KIP-932).
-- KEYS     1 group
-- ARGV     1 channel of the group
--          2 its type
--          3 token of the caller
--          4 ms after which the right ends ("0": the caller gives it back)
-- Returns  {1 if the caller has the right, else 0, group epoch, assignment epoch, ms that another caller's right lasts}
-- Errors   GROUP_ID_NOT_FOUND
--
-- Nobody gets it while the target assignment is that of the group epoch. One that lasts longer than a caller may ask for was
-- given before the clock was set back: it has ended. allow-oom: a rebalance must work when memory is full.

-- @include shared/clock

local group = KEYS[1]
local channel, kind_asked, token, lease_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local held = redis.call('HMGET', group, 'type', 'generation', 'assignment_epoch', 'assigner', 'assigner_until', 'state')
if held[1] ~= kind_asked then
  return redis.error_reply('GROUP_ID_NOT_FOUND there is no such ' .. kind_asked .. ' group')
end
local generation, assignment_epoch = tonumber(held[2]), tonumber(held[3])
if lease_ms == 0 then
  if held[4] == token then
    redis.call('HDEL', group, 'assigner', 'assigner_until')
    redis.call('SPUBLISH', channel, held[2] .. ' ' .. held[6])
  end
  return {0, generation, assignment_epoch, 0}
end
local left_ms = held[4] and held[4] ~= token and tonumber(held[5]) - now_ms or 0
if generation <= assignment_epoch or left_ms > 0 and left_ms <= lease_ms then
  return {0, generation, assignment_epoch, math.max(left_ms, 0)}
end
redis.call('HSET', group, 'assigner', token, 'assigner_until', string.format('%d', now_ms + lease_ms))
return {1, generation, assignment_epoch, 0}
