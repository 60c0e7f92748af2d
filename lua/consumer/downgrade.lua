#!lua flags=allow-oom
-- Makes a group of the consumer protocol whose members all use the classic protocol a classic group again (KIP-848): a stable
-- one of the same epoch, or one whose members join again, each within its rebalance timeout. Then the generation is the latest
-- epoch of a member, and what they own stays known until they sync: the group may become one of the consumer protocol before.
-- KEYS     1 group
--          2 members
--          3 deadlines
--          4 assignments
-- ARGV     1 channel of the group
--          2 most members of a classic group
--          3 epoch of a stable group as read; with it:
--          4 its protocol
--          5 and on: for each member: its id; its assignment
-- Returns  when (ms) something is due; -1 if it is another group by now, or not stable in that epoch but for the member that
--          has joined last, and nothing is done
-- Errors   TRYAGAIN (shared/slot_stays), KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- allow-oom: a rebalance must work when memory is full.

-- @include shared/clock

local group, members, deadlines, assignments = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, size_max = ARGV[1], tonumber(ARGV[2])
-- @include shared/slot_stays
-- @include shared/consumer_state

local epoch_read, protocol, assigned = ARGV[3], ARGV[4] or '', {}
for at = 5, #ARGV, 2 do
  assigned[ARGV[at]] = ARGV[at + 1]
end
if kind ~= 'consumer' or size == 0 or classic < size or size > size_max then
  return -1
elseif epoch_read and (whole(generation) ~= epoch_read or assignment_epoch ~= generation or stable < size - 1) then
  return -1
end
local all, longest, latest = redis.call('ZRANGE', deadlines, 0, -1), 0, 0
local scores, epoch_fields, owned = {}, {}, {}
for start = 1, #all, 500 do
  local rows, epochs, current = {}, {}, {}
  for at = start, math.min(start + 499, #all) do
    rows[#rows + 1], epochs[#epochs + 1], current[#current + 1] = 'm:' .. all[at], 'e:' .. all[at], 'c:' .. all[at]
    epoch_fields[#epoch_fields + 1] = 'e:' .. all[at]
  end
  for at, text in ipairs(redis.call('HMGET', members, unpack(epochs))) do
    local epoch = epoch_row_of(all[start + at - 1], text or '').epoch
    if epoch == -4 then
      return -1 -- it has not left yet
    end
    latest = math.max(latest, epoch)
    if epoch_read and not assigned[all[start + at - 1]] then
      return -1 -- it has joined since
    end
  end
  for at, text in ipairs(redis.call('HMGET', assignments, unpack(current))) do
    owned[#owned + 1] = 'a:' .. all[start + at - 1]
    owned[#owned + 1] = assigned[all[start + at - 1]] or text or ''
  end
  for at, text in ipairs(redis.call('HMGET', members, unpack(rows))) do
    local row = row_of(all[start + at - 1], text or '')
    longest = math.max(longest, tonumber(row.rebalance_ms) or 0)
    scores[#scores + 1] = whole(now_ms + row.session_ms)
    scores[#scores + 1] = all[start + at - 1]
  end
end
-- What was staged for an upgrade before is of another group.
redis.call('HINCRBY', group, 'revision', 1)
for start = 1, #all, 500 do
  local last = math.min(start + 499, #all)
  redis.call('ZADD', deadlines, unpack(scores, 2 * start - 1, 2 * last))
  redis.call('HDEL', members, unpack(epoch_fields, start, last))
  redis.call('HSET', members, unpack(owned, 2 * start - 1, 2 * last))
end
redis.call('HDEL', group, 'type', 'assignment_epoch', 'stable', 'classic', 'assignor', 'subscriptions', 'digest',
  'assigner', 'assigner_until')
local state, leader, deadline = 'PreparingRebalance', '', now_ms + longest
if epoch_read then
  state, leader, deadline, latest = 'Stable', all[1], 0, generation
end
redis.call('HSET', group, 'state', state, 'generation', whole(latest), 'protocol', protocol, 'leader', leader, 'since',
  whole(now_ms), 'deadline', whole(deadline), 'extend_until', '0', 'delay', '0', 'added', '0')
redis.call('UNLINK', assignments)
redis.call('SPUBLISH', channel, whole(latest) .. ' ' .. state)
return due_at()
