#!lua flags=allow-oom
-- Begins the sessions of a group's members again, and the time of the rebalance or sync under way.
-- KEYS     1 group
--          2 members
--          3 deadlines
--          4 assignments (not used: as group/advance)
-- ARGV     1 channel of the group
-- Returns  when (ms, Redis' clock) something is due, -1 if nothing is
-- Errors   GROUP_ID_NOT_FOUND (shared/group_state; never here), KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- For after an outage, in which members could not renew their sessions, and for when Redis' clock was set: what ends later
-- than it could by this clock ends so much earlier, also an id that was given out and has not joined yet.
-- allow-oom: consumers go on when memory is full.

-- @include shared/clock

local group, members, deadlines = KEYS[1], KEYS[2], KEYS[3]
local channel = ARGV[1]

if redis.call('HGET', group, 'type') then
  -- Not of 0: members that are being removed.
  local all = redis.call('ZRANGEBYSCORE', deadlines, '(0', '+inf')
  for start = 1, #all, 500 do
    local fields, scores, rows = {}, {}, {}
    for at = start, math.min(start + 499, #all) do
      fields[#fields + 1] = 'm:' .. all[at]
      fields[#fields + 1] = 'e:' .. all[at]
    end
    local found = redis.call('HMGET', members, unpack(fields))
    for at = 1, #found, 2 do
      local session_ms = found[at] and string.match(found[at], '"session_ms":(%d+)[,}]')
      if session_ms then
        local ends = now_ms + tonumber(session_ms)
        -- A member that must act has its whole rebalance timeout again, as in Kafka when another broker loads the group.
        local rebalance_ms = string.match(found[at], '"rebalance_ms":(%d+)[,}]')
        local before, by, after = string.match(found[at + 1] or '', '^(.*"by":)(%d+)(,.*)$')
        if rebalance_ms and tonumber(by or 0) > 0 then
          local act_by = now_ms + tonumber(rebalance_ms)
          rows[#rows + 1] = fields[at + 1]
          rows[#rows + 1] = before .. string.format('%d', act_by) .. after
          ends = math.min(ends, act_by)
        end
        scores[#scores + 1] = string.format('%d', ends)
        scores[#scores + 1] = all[start + (at - 1) / 2]
      end
    end
    if scores[1] then
      redis.call('ZADD', deadlines, 'XX', unpack(scores))
    end
    if rows[1] then
      redis.call('HSET', members, unpack(rows))
    end
  end
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
local all = redis.call('ZRANGEBYSCORE', deadlines, '-inf', '(+inf', 'WITHSCORES')
for at = 1, #all, 2 do
  local session_ms = not row_of(all[at]) and redis.call('HGET', members, 'w:' .. all[at])
  if session_ms then
    scores[#scores + 1] = whole(math.min(tonumber(all[at + 1]), now_ms + tonumber(session_ms)))
    scores[#scores + 1] = all[at]
  end
end
if deadline > 0 and extend_until == 0 then
  deadline = now_ms + rebalance_ms()
elseif extend_until > 0 then
  deadline, extend_until = math.min(deadline, now_ms + delay), math.min(extend_until, now_ms + rebalance_ms())
end
in_thousands(scores, function(...) redis.call('ZADD', deadlines, 'XX', ...) end)
finish()
return due_at()
