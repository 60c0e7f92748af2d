#!lua
-- Notes what the members of a streams group have in common, and begins a new epoch of it (KIP-1071).
-- KEYS     1 group
--          2 members
--          3 deadlines
--          4 assignments
-- ARGV     1 channel of the group
--          2 topology (JSON; it is the group's if that has none; "": none is said)
--          3 ms until the first assignment is computed if the group has had no members ("": it has)
--          4 id of the member that asks all to end ("": none does)
-- Returns  1, or 0 if there is no such group, and nothing is done
-- Errors   KAFKA_STORAGE_ERROR (what is stored cannot be read), OOM (shared/memory_is_full)
--
-- Where memory is full a group that has no topology yet gets none; others go on.

-- @include shared/memory_is_full
-- @include shared/clock

local group, members, deadlines, assignments = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, topology, delay_ms, ends_by = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
-- @include shared/consumer_state

if kind ~= 'streams' then
  return 0
end
if topology ~= '' and not redis.call('HGET', group, 'topology') then
  if memory_is_full then
    return redis.error_reply('OOM memory is full, and a topology would take more of it')
  end
  redis.call('HSET', group, 'topology', topology)
end
if delay_ms then
  redis.call('HSET', group, 'delayed_until', whole(now_ms + delay_ms))
end
if ends_by ~= '' and not redis.call('HGET', group, 'ends_by') then
  redis.call('HSET', group, 'ends_by', ends_by)
end
generation, announced = generation + 1, true
finish()
return 1
