-- The transitions of a group; after shared/group_state. Needs also the local `channel`, the group's. A script that changed
-- anything ends with `finish()`, and returns when something is due: the caller writes that into the list of groups.
--
-- A member whose request is parked has the deadline +inf: it waits for others, and its session cannot end. So a
-- rebalance is complete when every row of `deadlines`, pending members' too, is +inf.
--
-- What cannot be read ends a script before it has written anything: keys of another type and counts that are none at
-- once, rows by `read_ahead` or `each_row`, to be called before the first write.

local announced = false
local state_before, generation_before, size_before = state, generation, size

for key, kind in pairs({[members] = 'hash', [deadlines] = 'zset'}) do
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    malformed(key, 'it is a ' .. found .. ', and no ' .. kind)
  end
end
for field in pairs(stored) do
  if string.sub(field, 1, 2) == 's:' then
    number_of(field)
  end
end

-- Reads the rows that a transition needs, if one may follow once these members have joined or left: none does while
-- a rebalance waits for others too, or for more time. So in a large group few of those who join read all.
local function read_ahead(names)
  if state == 'PreparingRebalance' then
    local awaited = redis.call('ZCARD', deadlines) - redis.call('ZCOUNT', deadlines, '+inf', '+inf')
    for _, member in ipairs(names) do
      local score = redis.call('ZSCORE', deadlines, member)
      if score and score ~= 'inf' then
        awaited = awaited - 1
      end
    end
    if extend_until > 0 and deadline > now_ms or extend_until == 0 and awaited > 0 then
      return
    end
  end
  each_row(redis.call('ZRANGE', deadlines, 0, -1))
end

local function in_thousands(list, act)
  for start = 1, #list, 1000 do
    act(unpack(list, start, math.min(start + 999, #list)))
  end
end

-- Begins the sessions of all whose requests are answered now.
local function unpark()
  local scores = {}
  each_row(redis.call('ZRANGEBYSCORE', deadlines, '+inf', '+inf'), function(member, row)
    scores[#scores + 1] = whole(now_ms + row.session_ms)
    scores[#scores + 1] = member
  end)
  in_thousands(scores, function(...) redis.call('ZADD', deadlines, ...) end)
end

-- How many members support a protocol is counted, so that a member that joins need not look at all others.
local function count_protocols(names, by)
  local seen = {}
  for _, each in ipairs(names) do
    if not seen[each] and redis.call('HINCRBY', group, 's:' .. each, by) <= 0 then
      redis.call('HDEL', group, 's:' .. each)
    end
    seen[each] = true
  end
end

local function remove(member)
  local row = row_of(member)
  redis.call('HDEL', members, 'm:' .. member, 'p:' .. member, 'a:' .. member, 's:' .. member, 'w:' .. member)
  redis.call('ZREM', deadlines, member)
  rows[member] = false
  announced = true
  if row then
    count_protocols(row.protocols, -1)
    size = size - 1
    if row.instance ~= '' and redis.call('HGET', members, 'i:' .. row.instance) == member then
      redis.call('HDEL', members, 'i:' .. row.instance)
    end
    if leader == member then
      leader = ''
    end
  end
end

-- The longest time any member has to join again, in ms.
local function rebalance_ms()
  local longest = 0
  each_row(redis.call('ZRANGE', deadlines, 0, -1), function(_, row)
    longest = math.max(longest, row.rebalance_ms)
  end)
  return longest
end

-- Every member votes for the first of its protocols that all support; the earliest one named wins if votes are even.
local function chosen_protocol()
  local supported, order, voters = {}, {}, {}
  each_row(redis.call('ZRANGE', deadlines, 0, -1), function(_, row)
    voters[#voters + 1] = row
    local seen = {}
    for _, each in ipairs(row.protocols) do
      if not seen[each] then
        seen[each] = true
        supported[each] = (supported[each] or 0) + 1
      end
    end
  end)
  local votes, best = {}, nil
  for _, row in ipairs(voters) do
    for _, each in ipairs(row.protocols) do
      if supported[each] == #voters then
        if not votes[each] then
          order[#order + 1] = each
        end
        votes[each] = (votes[each] or 0) + 1
        break
      end
    end
  end
  for _, each in ipairs(order) do
    if not best or votes[each] > votes[best] then
      best = each
    end
  end
  return best or ''
end

-- Asks all members to join again.
local function prepare(initial_delay)
  local longest = rebalance_ms()
  if state == 'CompletingRebalance' then
    unpark()
  end
  if state == 'Empty' or state == 'Dead' then
    delay, added = initial_delay, false
    deadline, extend_until = now_ms + delay, now_ms + math.max(longest, delay)
  else
    deadline, extend_until = now_ms + longest, 0
  end
  state = 'PreparingRebalance'
end

-- Begins the next generation with the members that have joined; absent ones that are not static are removed.
local function complete()
  local all = redis.call('ZRANGE', deadlines, 0, -1, 'WITHSCORES')
  local parked, absent = {}, {}
  for at = 1, #all, 2 do
    local list = all[at + 1] == 'inf' and parked or absent
    list[#list + 1] = all[at]
  end
  each_row(absent, function(member, row)
    if row.instance == '' then
      remove(member)
    end
  end)
  if size > 0 and #parked == 0 then
    deadline, extend_until = now_ms + rebalance_ms(), 0
    return
  end
  generation = generation % 2147483647 + 1
  extend_until, delay, added = 0, 0, false
  if size == 0 then
    state, protocol, leader, deadline = 'Empty', '', '', 0
    return
  end
  if leader == '' or redis.call('ZSCORE', deadlines, leader) ~= 'inf' then
    leader = parked[1]
  end
  protocol = chosen_protocol()
  deadline = now_ms + rebalance_ms()
  unpark()
  state = 'CompletingRebalance'
end

-- Ends a rebalance that waits for no member any more. Without members it waits for none: ids that were given out start again.
local function complete_if_all_joined()
  if state ~= 'PreparingRebalance' then
    return
  end
  if extend_until > 0 then
    if deadline <= now_ms and not added then
      complete()
    end
  elseif size == 0 or redis.call('ZCOUNT', deadlines, '+inf', '+inf') == redis.call('ZCARD', deadlines) then
    complete()
  end
end

-- Call once after removals. An id that was given out and had not joined was not in the generation.
local function after_removal()
  if size < size_before and (state == 'Stable' or state == 'CompletingRebalance') then
    prepare(0)
  end
  complete_if_all_joined()
end

-- Writes what has changed, and announces a transition.
local function finish()
  local fields = {
    'state', state, 'generation', whole(generation), 'protocol_type', protocol_type, 'protocol', protocol,
    'leader', leader, 'size', whole(size), 'deadline', whole(deadline), 'extend_until', whole(extend_until),
    'delay', whole(delay), 'added', added and '1' or '0', 'revision', whole(number_of('revision') + 1),
  }
  if stored.type then
    redis.call('HDEL', group, 'type', 'assignment_epoch', 'stable', 'classic', 'assignor', 'subscriptions',
      'digest', 'assigner', 'assigner_until', 'topology', 'delayed_until', 'ends_by', 'endpoints')
  end
  if state ~= state_before then
    fields[#fields + 1] = 'since'
    fields[#fields + 1] = whole(now_ms)
  end
  redis.call('HSET', group, unpack(fields))
  if announced or state ~= state_before or generation ~= generation_before then
    redis.call('SPUBLISH', channel, whole(generation) .. ' ' .. state)
  end
end
