#!lua flags=allow-oom
-- Ends what is past its deadline in a group: sessions, rebalances and syncs.
-- KEYS     1 group
--          2 members
--          3 deadlines
--          4 assignments
-- ARGV     1 channel of the group
-- Returns  when (ms, Redis' clock) something is due again, -1 if nothing is, -2 if there is no such group, nor the number of a
--          transaction that has ended for one (group/end_transaction)
-- Errors   GROUP_ID_NOT_FOUND (shared/group_state; never here), TRYAGAIN (shared/slot_stays), KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- Several may call this at once: what was done is not done again. Of a group of the consumer protocol, a share or streams group, it
-- removes some at once, whose sessions have ended or who have not revoked partitions in time, and the rest at the next call; one
-- that has many partitions it removes by several calls, and returns 0 until that is done.
-- allow-oom: what frees memory must work when there is none left.

-- @include shared/clock

local group, members, deadlines = KEYS[1], KEYS[2], KEYS[3]
local assignments = KEYS[4]
local channel = ARGV[1]
local removed_at_once = 100
-- @include shared/slot_stays
-- @include shared/consumer_state

if kind then
  local late = redis.call('ZRANGEBYSCORE', deadlines, '-inf', whole(now_ms), 'LIMIT', 0, removed_at_once)
  local size_before = size
  local some, freed = {}, 0
  for _, member in ipairs(late) do
    if freed < freed_at_once then
      local found = member_of(member)
      some[#some + 1] = member
      freed = freed + (found and #found.owned or 0)
    end
  end
  for _, member in ipairs(some) do
    remove_some(member)
  end
  if size < size_before then
    generation = generation + 1
  end
  if some[1] then
    finish()
  end
  return due_at()
end
-- @include shared/group_state
-- @include shared/group_steps

if state == 'Dead' then
  return stored.since and -1 or -2
end

local gone = redis.call('ZRANGEBYSCORE', deadlines, '-inf', now_ms)
if #gone > 0 or deadline > 0 and deadline <= now_ms then
  each_row(redis.call('ZRANGE', deadlines, 0, -1))
end
for _, member in ipairs(gone) do
  remove(member)
end
if #gone > 0 then
  after_removal()
end

if deadline > 0 and deadline <= now_ms then
  if state == 'PreparingRebalance' then
    if added and now_ms < extend_until then
      deadline, added = math.min(now_ms + delay, extend_until), false
    else
      complete()
    end
  else
    -- Members that joined the generation and never synced are gone.
    deadline = 0
    local silent = {}
    for _, member in ipairs(redis.call('ZRANGE', deadlines, 0, -1)) do
      if redis.call('HGET', members, 's:' .. member) ~= whole(generation) then
        silent[#silent + 1] = member
      end
    end
    local removed = false
    each_row(silent, function(member)
      remove(member)
      removed = true
    end)
    if removed then
      after_removal()
    end
  end
end
finish()
return due_at()
