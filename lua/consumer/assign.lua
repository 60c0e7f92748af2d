#!lua flags=allow-oom
-- Writes a part of a new target assignment, and with the last part makes it that of the group (KIP-848, KIP-932).
-- KEYS     1 group
--          2 members
--          3 deadlines
--          4 assignments
-- ARGV     1 channel of the group
--          2 its type
--          3 token of the caller (consumer/claim)
--          4 group epoch that the assignment is for
--          5 1 with the last part (else 0)
--          6 assignor
--          7 what the members subscribe to (JSON)
--          8 a digest of the topics that this is
--          9 and on: for each member its id and its target row; 1,000 at most
-- Returns  1, or 0 if the caller has the right no longer, and nothing is done
-- Errors   KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- Parts take effect as they come: what a member is to have it gets only if nobody owns it. So an assignment of which only a
-- part was written does no harm until the next one. allow-oom: a rebalance must work when memory is full.

-- @include shared/clock

local group, members, deadlines, assignments = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, kind_asked, token, epoch, is_last = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'
local assignor, subscriptions, digest, first = ARGV[6], ARGV[7], ARGV[8], 9
-- @include shared/consumer_state

if kind ~= kind_asked or redis.call('HGET', group, 'assigner') ~= token or epoch <= assignment_epoch then
  return 0
end
local fields = {}
for at = first, #ARGV, 2 do
  fields[#fields + 1] = 'e:' .. ARGV[at]
end
if fields[1] then
  local rows = {}
  for at, found in ipairs(redis.call('HMGET', members, unpack(fields))) do
    if found then
      rows[#rows + 1] = 't:' .. ARGV[first + 2 * (at - 1)]
      rows[#rows + 1] = ARGV[first + 2 * (at - 1) + 1]
    end
  end
  if rows[1] then
    redis.call('HSET', assignments, unpack(rows))
  end
end
if is_last then
  assignment_epoch, stable, announced = epoch, 0, true
  redis.call('HSET', group, 'assignor', assignor, 'subscriptions', subscriptions, 'digest', digest)
  redis.call('HDEL', group, 'assigner', 'assigner_until')
  finish()
end
return 1
