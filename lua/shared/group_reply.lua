-- What a member is told that has joined; behind shared/group_state. Only the leader is told of the members.

local function joined(member, skip, told_leader)
  local reply = {'JOINED', member, whole(generation), protocol_type, protocol, told_leader or leader, skip and 1 or 0}
  if member ~= (told_leader or leader) then
    return reply
  end
  local names = redis.call('ZRANGE', deadlines, 0, -1)
  for start = 1, #names, 1000 do
    local fields = {}
    for at = start, math.min(start + 999, #names) do
      fields[#fields + 1] = 'm:' .. names[at]
      fields[#fields + 1] = 'p:' .. names[at]
    end
    local found = redis.call('HMGET', members, unpack(fields))
    for at = 1, #found, 2 do
      if found[at] then
        local name = names[start + (at - 1) / 2]
        reply[#reply + 1] = name
        reply[#reply + 1] = decoded(name, found[at]).instance
        reply[#reply + 1] = found[at + 1] or ''
      end
    end
  end
  return reply
end
