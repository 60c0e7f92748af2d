-- The reply to a member that has joined; after shared/group_state. Only the leader gets the members.

local function joined(member, skip, leader_reported)
  local reply = {
    'JOINED', due_at(), member, whole(generation), protocol_type, protocol, leader_reported or leader, skip and 1 or 0,
  }
  if member ~= (leader_reported or leader) then
    return reply
  end
  local fields = {}
  each_row(redis.call('ZRANGE', deadlines, 0, -1), function(name, row)
    reply[#reply + 1] = name
    reply[#reply + 1] = row.instance
    reply[#reply + 1] = ''
    fields[#fields + 1] = 'p:' .. name
  end)
  local first = 11 -- after the head and the first member's id and instance id
  for start = 1, #fields, 1000 do
    local found = redis.call('HMGET', members, unpack(fields, start, math.min(start + 999, #fields)))
    for at, protocols in ipairs(found) do
      reply[first + 3 * (start + at - 2)] = protocols or ''
    end
  end
  return reply
end
