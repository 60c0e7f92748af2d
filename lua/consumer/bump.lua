#!lua flags=allow-oom
-- Begins a new epoch of a group: the topics that its members subscribe to have changed (KIP-848, KIP-932).
-- KEYS     1 group
--          2 members
--          3 deadlines
--          4 assignments
-- ARGV     1 channel of the group
--          2 its type
--          3 group epoch as the caller has read it
--          4 digest of the topics as the caller has read it
--          5 subscriptions of the members (JSON), by the topics that exist now
-- Returns  1, or 0 if there is another epoch or digest by now, and nothing is done
-- Errors   KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- allow-oom: a rebalance must work when memory is full.

-- @include shared/clock

local group, members, deadlines, assignments = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, kind_asked, epoch, digest, subscriptions = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
-- @include shared/consumer_state

if kind ~= kind_asked or generation ~= epoch or (redis.call('HGET', group, 'digest') or '') ~= digest then
  return 0
end
generation, announced = generation + 1, true
redis.call('HSET', group, 'subscriptions', subscriptions)
finish()
return 1
