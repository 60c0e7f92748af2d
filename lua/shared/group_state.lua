-- The classic group as it is stored. Needs the locals `group`, `members` and `deadlines`, the keys, and now_ms.
-- Missing numbers are 0; a group without a state is Dead, the empty one.

local function malformed(key, what)
  error({err = 'KAFKA_STORAGE_ERROR ' .. key .. ': ' .. what})
end

local stored, flat = {}, redis.pcall('HGETALL', group)
if flat.err then
  malformed(group, flat.err)
end
for at = 1, #flat, 2 do
  stored[flat[at]] = flat[at + 1]
end

-- An empty one of the consumer protocol becomes a classic group with the first member that joins so.
if stored.type == 'share' or stored.type and stored.state ~= 'Empty' then
  return redis.error_reply('GROUP_ID_NOT_FOUND the group is no classic group')
end

-- No member is counted, and no generation goes on, from what is no number.
local function number_of(field)
  local text = stored[field] or '0'
  if not string.match(text, '^%d+$') or #text > 15 then
    malformed(group, 'the field ' .. field .. ' is no number')
  end
  return tonumber(text)
end

local state, protocol_type = stored.state or 'Dead', stored.protocol_type or ''
local protocol, leader = stored.protocol or '', stored.leader or ''
local generation, size, deadline = number_of('generation'), number_of('size'), number_of('deadline')
local extend_until, delay, added = number_of('extend_until'), number_of('delay'), stored.added == '1'
local STATES = {Dead = true, Empty = true, PreparingRebalance = true, CompletingRebalance = true, Stable = true}
if not STATES[state] or generation > 2147483647 then
  malformed(group, 'there is no state ' .. state .. ', or no generation ' .. stored.generation)
end

local function whole(number)
  return string.format('%d', number)
end

local function is_span(ms)
  return type(ms) == 'number' and ms >= 0 and ms <= 2147483647
end

local function is_row(row)
  if type(row) ~= 'table' or not is_span(row.session_ms) or not is_span(row.rebalance_ms)
      or type(row.protocols) ~= 'table' or type(row.instance) ~= 'string' then
    return false
  end
  for _, each in ipairs(row.protocols) do
    if type(each) ~= 'string' then
      return false
    end
  end
  return true
end

-- A member's row from its text; one that cannot be read ends the script.
local function decoded(member, text)
  local readable, row = pcall(cjson.decode, text)
  if not readable or not is_row(row) then
    malformed(members, 'the row of member ' .. member .. ' is malformed')
  end
  return row
end

-- The rows of members as they were when they were first asked for: member -> row, false if it has none.
local rows = {}

-- Calls `act(member, row)` for all of a list of members that have joined; rows are read a thousand at a time.
local function each_row(names, act)
  for start = 1, #names, 1000 do
    local unread, fields = {}, {}
    for at = start, math.min(start + 999, #names) do
      if rows[names[at]] == nil then
        unread[#unread + 1] = names[at]
        fields[#fields + 1] = 'm:' .. names[at]
      end
    end
    if unread[1] then
      for at, text in ipairs(redis.call('HMGET', members, unpack(fields))) do
        rows[unread[at]] = text and decoded(unread[at], text)
      end
    end
  end
  for _, member in ipairs(act and names or {}) do
    if rows[member] then
      act(member, rows[member])
    end
  end
end

-- The member's row, false if it is none.
local function row_of(member)
  each_row({member})
  return rows[member]
end

-- The error for a request of this member: nil, or its name. An instance is that of one member at a time.
local function refusal(member, instance)
  if instance ~= '' then
    local holder = redis.call('HGET', members, 'i:' .. instance)
    if not holder then
      return 'UNKNOWN_MEMBER_ID'
    elseif holder ~= member then
      return 'FENCED_INSTANCE_ID'
    end
  end
  if redis.call('HEXISTS', members, 'm:' .. member) == 0 then
    return 'UNKNOWN_MEMBER_ID'
  end
end

local function next_deadline()
  local first = redis.call('ZRANGE', deadlines, 0, 0, 'WITHSCORES')
  local due = first[2] and tonumber(first[2]) or math.huge
  if deadline > 0 and deadline < due then
    due = deadline
  end
  return due
end

-- When something is due, as a reply; -1 if nothing is.
local function due_at()
  local due = next_deadline()
  return due == math.huge and -1 or due
end

-- The ms until then; -1 if nothing is due.
local function due_in()
  local due = next_deadline()
  return due == math.huge and -1 or math.max(0, due - now_ms)
end
