#!lua flags=allow-oom
-- Begins the sessions of a group's members again, and the time of the rebalance or sync under way.
-- KEYS     group, members, deadlines, assignments (not used: as group/advance)
-- ARGV     channel of the group
-- Returns  when (ms, Redis' clock) something is due, -1 if nothing is
-- Errors   GROUP_ID_NOT_FOUND (shared/group_state; never here), KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- For after an outage, in which members could not renew their sessions. No session becomes shorter. An id that was given
-- out and has not joined yet stays as it is. allow-oom: consumers go on when memory is full.

-- @include shared/clock

local group, members, deadlines = KEYS[1], KEYS[2], KEYS[3]
local channel = ARGV[1]

if redis.call('HGET', group, 'type') then
  -- Not of 0: members that are being removed.
  local all = redis.call('ZRANGEBYSCORE', deadlines, '(0', '+inf')
  for start = 1, #all, 1000 do
    local fields, scores = {}, {}
    for at = start, math.min(start + 999, #all) do
      fields[#fields + 1] = 'm:' .. all[at]
    end
    for at, row in ipairs(redis.call('HMGET', members, unpack(fields))) do
      local session_ms = row and string.match(row, '"session_ms":(%d+)[,}]')
      if session_ms then
        scores[#scores + 1] = string.format('%d', now_ms + tonumber(session_ms))
        scores[#scores + 1] = all[start + at - 1]
      end
    end
    if scores[1] then
      redis.call('ZADD', deadlines, 'XX', 'GT', unpack(scores))
    end
  end
  redis.call('HSET', group, 'resumed', string.format('%d', now_ms))
  local first = redis.call('ZRANGE', deadlines, 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) or -1
end
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
