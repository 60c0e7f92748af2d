#!lua flags=allow-oom
-- Begins the sessions of a group's members again, and the time of the rebalance or sync under way.
-- KEYS     group, members, deadlines
-- ARGV     channel of the group
-- Returns  when (ms, Redis' clock) something is due, -1 if nothing is
-- Errors   KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- For after an outage, in which members could not renew their sessions. No session becomes shorter. An id that was given
-- out and has not joined yet stays as it is. allow-oom: consumers go on when memory is full.

-- @include shared/clock

local group, members, deadlines = KEYS[1], KEYS[2], KEYS[3]
local channel = ARGV[1]
-- @include shared/group_state
-- @include shared/group_steps

if size == 0 then
  return due_at()
end
local scores = {}
each_row(redis.call('ZRANGEBYSCORE', deadlines, '-inf', '(+inf'), function(member, row)
  scores[#scores + 1] = whole(now_ms + row.session_ms)
  scores[#scores + 1] = member
end)
if deadline > 0 and extend_until == 0 then
  deadline = math.max(deadline, now_ms + rebalance_ms())
end
in_thousands(scores, function(...) redis.call('ZADD', deadlines, 'XX', 'GT', ...) end)
finish()
return due_at()
