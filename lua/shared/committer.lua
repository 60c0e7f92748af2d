-- Refuses a commit of one that may not commit: a generation of no group, a member that is none or of another generation, or
-- of another epoch in a group of the consumer protocol (KIP-848); a client that knows of no member epochs is no member of
-- that protocol, whatever generation it names. In a transaction one that says nothing of itself may, also
-- for a group with members (KIP-447). Nobody commits for a share group (KIP-932).
-- Needs   group, members, group_id, generation, member_id, instance_id, transactional, knows_epochs
-- Leaves  held: state, generation and type; state (nil: there is no group), member_row (nil: not a member)
local held = redis.call('HMGET', group, 'state', 'generation', 'type')
local state, member_row = held[1], nil
if held[3] == 'share' then
  return redis.error_reply('GROUP_ID_NOT_FOUND group ' .. group_id .. ' is not a consumer group')
elseif not state and generation >= 0 then
  return redis.error_reply((knows_epochs and not transactional and 'GROUP_ID_NOT_FOUND' or 'ILLEGAL_GENERATION')
    .. ' there is no group ' .. group_id)
end
local is_anybody = generation < 0 and member_id == '' and instance_id == ''
if state and (generation >= 0 or state ~= 'Empty') and not (transactional and is_anybody) then
  if is_anybody then
    return redis.error_reply('UNKNOWN_MEMBER_ID group ' .. group_id .. ' has members, and only these may commit')
  end
  local found = redis.call('HMGET', members, 'm:' .. member_id, 'i:' .. instance_id, 'e:' .. member_id)
  if instance_id ~= '' and found[2] and found[2] ~= member_id then
    return redis.error_reply('FENCED_INSTANCE_ID instance ' .. instance_id .. ' of group ' .. group_id
      .. ' belongs to another member now')
  end
  if not found[1] or instance_id ~= '' and not found[2] then
    return redis.error_reply('UNKNOWN_MEMBER_ID group ' .. group_id .. ' has no member ' .. member_id)
  end
  if held[3] then
    local epoch = string.match(found[3] or '', '^{"epoch":(%-?%d+),')
    local is_classic = not string.find(found[1], '"protocols":[]', 1, true)
    if not is_classic and not knows_epochs then
      return redis.error_reply('UNSUPPORTED_VERSION member ' .. member_id .. ' of group ' .. group_id
        .. ' uses the ' .. held[3] .. ' protocol: it has to commit by version 9 or later')
    elseif generation ~= tonumber(epoch or '') then
      return redis.error_reply(string.format('%s member %s of group %s has epoch %s, not %d',
        is_classic and 'ILLEGAL_GENERATION' or 'STALE_MEMBER_EPOCH', member_id, group_id, epoch or 'of no form', generation))
    end
  elseif generation ~= tonumber(held[2]) then
    return redis.error_reply(string.format('ILLEGAL_GENERATION group %s is in generation %s, not %d', group_id,
      tostring(held[2]), generation))
  end
  member_row = found[1]
end
