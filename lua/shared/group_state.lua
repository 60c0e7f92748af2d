-- The group as it is stored, and Redis' clock. Wants the locals `group`, `members` and `deadlines`, the keys.
-- Numbers that are not there are 0; a group without a state is Dead, the empty one.

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local stored = redis.call('HMGET', group, 'state', 'generation', 'protocol_type', 'protocol', 'leader', 'size',
  'deadline', 'extend_until', 'delay', 'added')
local state, protocol_type, protocol, leader = stored[1] or 'Dead', stored[3] or '', stored[4] or '', stored[5] or ''
local generation, size = tonumber(stored[2] or '0'), tonumber(stored[6] or '0')
local deadline, extend_until = tonumber(stored[7] or '0'), tonumber(stored[8] or '0')
local delay, added = tonumber(stored[9] or '0'), stored[10] == '1'
if not (generation and size and deadline and extend_until and delay) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. group .. ': a field that should be a number is none')
end

local function whole(number)
  return string.format('%d', number)
end

-- The member's row, nil where it is none; a row that cannot be read ends the script.
local function decoded(member, text)
  if not text then
    return nil
  end
  local readable, row = pcall(cjson.decode, text)
  if not readable or type(row) ~= 'table' or type(row.session_ms) ~= 'number' or type(row.rebalance_ms) ~= 'number'
      or type(row.protocols) ~= 'table' or type(row.instance) ~= 'string' then
    error({err = 'KAFKA_STORAGE_ERROR ' .. members .. ': the row of member ' .. member .. ' is malformed'})
  end
  return row
end

-- What is wrong with who asks: nil, or the name of the error. An instance is that of one member at a time.
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

-- The ms until something is due, as a reply; -1 where nothing is.
local function due_in()
  local due = next_deadline()
  return due == math.huge and -1 or math.max(0, due - now_ms)
end
