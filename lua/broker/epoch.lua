#!lua flags=allow-oom
-- Looks up the leader epoch of all partitions; begins a new one if this Redis has another history of writes than before.
-- KEYS     1 epoch
-- ARGV     1 the largest epoch that the worker knows (-1: none)
--          2 the history to which it belongs
-- Returns  {history, epoch}
-- Errors   KAFKA_STORAGE_ERROR (a malformed key, a writable replica, no replication id, epochs used up)
--
-- A history is a replication id: a server gets another one whenever it starts or becomes a master, so what one history
-- has acknowledged is not lost while it lasts. It is read here, in the step that compares it: a worker may be late.
-- An epoch must not be given to two histories, or a reader could not tell their records apart; and Redis may lose its
-- last seconds, the last increment among them. Each of three bounds keeps a new epoch above those before:
--   the stored one + 1, unless it is lost;
--   the largest one that the worker knows + 1, if that belongs to another history: the stored one is lost then;
--   the seconds since 2026 by Redis' clock, for a worker that knows none: that an epoch begins, is lost, and a server
--   starts or takes over takes longer than a second.
-- The cases left: a clock set back, or two failures in one second, that also lose the stored one, and no live worker
-- on. As seconds, epochs last until 2094.
-- allow-oom: a log must be readable if memory is full, and two short fields take next to none.

local key = KEYS[1]
local floor, floor_history = tonumber(ARGV[1]), ARGV[2]

local epoch_max = 2147483647
local year_2026 = 1767225600

local info = redis.call('INFO', 'replication')
if string.match(info, 'role:(%a+)') ~= 'master' then
  return redis.error_reply('KAFKA_STORAGE_ERROR this Redis is a replica')
end
local history = string.match(info, 'master_replid:(%w+)')
if not history then
  return redis.error_reply('KAFKA_STORAGE_ERROR INFO replication has no master_replid')
end

-- @include shared/whole_number

local held = redis.call('HMGET', key, 'history', 'epoch')
local stored = whole(held[2] or '0')
if not stored or stored > epoch_max then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. key .. ' is malformed')
end
if held[1] == history and (stored > floor or floor_history == history) then
  return {history, held[2]}
end
local epoch = math.max(stored + 1, floor + 1, redis.call('TIME')[1] - year_2026)
if epoch > epoch_max then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. key .. ': the leader epochs are used up')
end
local text = string.format('%d', epoch)
redis.call('HSET', key, 'history', history, 'epoch', text)
return {history, text}
