-- A group of the consumer protocol (KIP-848), a share group (KIP-932) or a streams group (KIP-1071) as it is stored, and what
-- their scripts have in common. Partitions of a share group have no owners: several members may have one. Members of a streams
-- group have tasks in place of partitions (korvet/groups/streams/types.py).
-- Needs   group, members, deadlines, assignments, channel, now_ms
-- Leaves  kind: "consumer", "share" or "streams" if it is such a group, state_before (false: there is no group), generation: its epoch,
--         assignment_epoch, size, stable: how many members have what they are to have, classic: how many use the classic
--         protocol, freed_at_once, whole(), epoch_row_of(), is_stable(), row_of(), count_protocols(), release(),
--         first_of(), member_of(), remove(), remove_some(), due_at(), finish()

local held = redis.pcall('HMGET', group, 'type', 'state', 'generation', 'assignment_epoch', 'size', 'stable', 'classic')
if held.err then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. group .. ': ' .. held.err)
end
local kind, state_before = held[1], held[2]
local generation, assignment_epoch, size = tonumber(held[3] or 0), tonumber(held[4] or 0), tonumber(held[5] or 0)
local stable, classic = tonumber(held[6] or 0), tonumber(held[7] or 0)
if kind and not (generation and assignment_epoch and size and stable and classic) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. group .. ': an epoch or a count is no number')
end
for key, type_wanted in pairs(kind and {[members] = 'hash', [deadlines] = 'zset', [assignments] = 'hash'} or {}) do
  local found = redis.call('TYPE', key).ok
  if found ~= type_wanted and found ~= 'none' then
    return redis.error_reply('KAFKA_STORAGE_ERROR ' .. key .. ': it is a ' .. found .. ', and no ' .. type_wanted)
  end
end
local announced = false
-- Partitions of a leaving member freed by one script: half a millisecond of Redis. A member with more is fenced
-- by the epoch -4, is due at once, and frees the others with the next scripts: none but these takes it for a member.
local freed_at_once = 500

local function whole(number)
  return string.format('%d', number)
end

local function damaged(key, member)
  error({err = 'KAFKA_STORAGE_ERROR ' .. key .. ': the row of member ' .. member .. ' is malformed'})
end

-- The epoch row of a member from its text.
local function epoch_row_of(member, text)
  local epoch, previous, phase, by, revision = string.match(text,
    '^{"epoch":(%-?%d+),"previous":(%-?%d+),"phase":"(%l+)","by":(%d+),"revision":(%d+)}$')
  if not epoch then
    damaged(members, member)
  end
  return {epoch = tonumber(epoch), previous = tonumber(previous), phase = phase, by = tonumber(by),
    revision = tonumber(revision)}
end

-- Whether a member has all that it is to have.
local function is_stable(row)
  return row.phase == 'stable' and row.epoch == assignment_epoch
end

-- A member's row from its text. How many support its protocols is counted (count_protocols), which must be a number too.
local counts = {}
local function row_of(member, text)
  local readable, row = pcall(cjson.decode, text)
  if not readable or type(row) ~= 'table' or type(row.protocols) ~= 'table' or type(row.instance) ~= 'string'
    or type(row.session_ms) ~= 'number' then
    damaged(members, member)
  end
  for _, each in ipairs(row.protocols) do
    if type(each) ~= 'string' then
      damaged(members, member)
    end
    counts[each] = counts[each] or redis.call('HGET', group, 's:' .. each) or '0'
    if not string.match(counts[each], '^%-?%d+$') then
      error({err = 'KAFKA_STORAGE_ERROR ' .. group .. ': the field s:' .. each .. ' is no number'})
    end
  end
  return row
end

-- Counts how many members support each classic protocol, and returns the change of the number of classic members.
local function count_protocols(row, by)
  local seen = {}
  for _, each in ipairs(row.protocols) do
    if not seen[each] and redis.call('HINCRBY', group, 's:' .. each, by) <= 0 then
      redis.call('HDEL', group, 's:' .. each)
    end
    seen[each] = true
  end
  return #row.protocols > 0 and by or 0
end

-- The fields of the first partitions of an assignment row, freed_at_once at most, and a row of the others, nil if there are
-- none. It is read as text: to decode ten thousand of them and encode what is left takes milliseconds.
local function first_of(row)
  local fields, revoking_at = {}, string.find(row, '"revoking":', 1, true)
  for topic_id, begin, indexes in string.gmatch(row, '"([^"]+)":%[()([%d,]*)') do
    for at, index in string.gmatch(indexes, '()(%d+)') do
      if #fields == freed_at_once then
        local others = '"' .. topic_id .. '":[' .. string.sub(row, begin + at - 1)
        return fields, (begin < revoking_at and '{"assigned":{' or '{"assigned":{},"revoking":{') .. others
      end
      fields[#fields + 1] = 'o:' .. topic_id .. ':' .. index
    end
  end
  return fields
end

-- Frees partitions that are still the member's.
local function release(member, fields)
  if kind == 'share' then
    return
  end
  for start = 1, #fields, 1000 do
    local last, own = math.min(start + 999, #fields), {}
    for at, owner in ipairs(redis.call('HMGET', assignments, unpack(fields, start, last))) do
      if owner == member then
        own[#own + 1] = fields[start + at - 1]
      end
    end
    if own[1] then
      redis.call('HDEL', assignments, unpack(own))
    end
  end
end

-- A member as it is stored, false if there is none: its row, its epoch row, its assignment row, and first_of that. What
-- cannot be read ends a script: to be called for all that it is about, before it writes anything.
local read = {}
local function member_of(member)
  if read[member] == nil then
    local rows = redis.call('HMGET', members, 'm:' .. member, 'e:' .. member)
    local current = redis.call('HGET', assignments, 'c:' .. member) or '{"assigned":{},"revoking":{}}'
    if not rows[1] ~= not rows[2] then
      damaged(members, member)
    elseif not string.find(string.gsub(current, '"[^"]+":%[[%d,]*%]', ''), '^{"assigned":{,*},"revoking":{,*}}$') then
      damaged(assignments, member)
    end
    read[member] = rows[1] and {row = row_of(member, rows[1]), epoch_row = epoch_row_of(member, rows[2]), current = current}
    if rows[1] then
      read[member].owned, read[member].others = first_of(current)
    end
  end
  return read[member]
end

-- Removes a member and what it owned; its instance id stays if it is another member's by now.
local function remove(member)
  local found = member_of(member)
  redis.call('ZREM', deadlines, member)
  if not found then
    return
  end
  local owned, others = found.owned, kind ~= 'share' and found.others
  release(member, owned)
  while others do
    owned, others = first_of(others)
    release(member, owned)
  end
  if is_stable(found.epoch_row) then
    stable = stable - 1
  end
  local instance = found.row.instance
  classic = classic + count_protocols(found.row, -1)
  size = size - 1
  announced = true
  if instance ~= '' and redis.call('HGET', members, 'i:' .. instance) == member then
    redis.call('HDEL', members, 'i:' .. instance)
  end
  redis.call('HDEL', assignments, 'c:' .. member, 't:' .. member)
  redis.call('HDEL', members, 'm:' .. member, 'e:' .. member, 'p:' .. member)
  read[member] = false
end

-- Removes a member, or begins to if it owns more than is freed at once; returns whether it is gone.
local function remove_some(member)
  local found = member_of(member)
  if not found or not found.others or kind == 'share' then
    remove(member)
    return true
  end
  release(member, found.owned)
  if is_stable(found.epoch_row) then
    stable = stable - 1
  end
  redis.call('HSET', assignments, 'c:' .. member, found.others)
  redis.call('HSET', members, 'e:' .. member, string.format(
    '{"epoch":-4,"previous":-4,"phase":"stable","by":0,"revision":%d}', found.epoch_row.revision + 1))
  redis.call('ZADD', deadlines, 0, member)
  return false
end

-- When the first deadline is, as a reply; -1 if there is none.
local function due_at()
  local first = redis.call('ZRANGE', deadlines, 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) or -1
end

-- Writes epochs, counts and state, and announces what others may wait for.
local function finish()
  local state = 'Stable'
  if size == 0 then
    state = 'Empty'
    redis.call('HDEL', group, 'ends_by') -- who asked all members of a streams group to end: they have
  elseif kind == 'share' then
    state = 'Stable' -- a member has its target with its next heartbeat, whatever others have
  elseif kind == 'streams' and (redis.call('HGET', group, 'assignor') or '') == '' then
    state = 'NotReady' -- topics are missing, or have other numbers of partitions than they need
  elseif generation > assignment_epoch then
    state = 'Assigning'
  elseif stable < size then
    state = 'Reconciling'
  end
  redis.call('HSET', group, 'type', kind, 'state', state, 'generation', whole(generation), 'assignment_epoch',
    whole(assignment_epoch), 'size', whole(size), 'stable', whole(stable), 'classic', whole(classic), 'protocol_type',
    kind)
  if state ~= state_before then
    redis.call('HSET', group, 'since', whole(now_ms))
  end
  if announced then
    redis.call('SPUBLISH', channel, whole(generation) .. ' ' .. state)
  end
end
