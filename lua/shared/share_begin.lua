-- The first part of a script about a group's part of a partition, in place: the log, and the header of the part.
-- Needs   stream, state, share, group, held (of the state: topic, log, epochs, clean_token, clean) and what shared/log_fields
--         leaves, is_replaced (true: a malformed header is as none, but for its kind)
-- Leaves  log_start (the first offset that there is, the lake included), log_end, epoch (the log's last, "-1" without one),
--         held (the state's fields), header (false without a part), kind ("redis" or "ranges"; nil without a part), start;
--         locked_ms, when locks began last (0: none has); of kind ranges also next_offset and in_flight, of kind redis
--         lock_ms_then, that of the last change;
--         begin_kind(wanted), the kind that a part has or gets
-- The header is `redis <start> <ms of a lock> <locked>` or `ranges <start> <next> <in flight> <locked>`: docs/redis-schema.md.
local log_end, log_start = next_offset, math.max(start, first, lake_start)
if lake_start >= 0 and lake_start < start then
  log_start = lake_start
end
local epoch = string.match(held[3] or '', '^(%d+)@') or '-1'

local header = redis.call('HGET', share, 'h:' .. group)
local kind, start, next_offset, in_flight, lock_ms_then, locked_ms
if header then
  local text, second, third, fourth
  kind, text, second, third, fourth = string.match(header, '^(%l+) (%d+) (%d+) ?(%d*) ?(%d*)$')
  start, second, third, fourth = whole(text), whole(second), whole(third), whole(fourth)
  if kind == 'ranges' then
    next_offset, in_flight, locked_ms = second, third, fourth or 0
  elseif kind == 'redis' then
    lock_ms_then, locked_ms = second, third or 0
  end
  local is_whole = start and (next_offset and in_flight or lock_ms_then)
  if is_replaced and not is_whole then
    kind = string.match(header, '^redis') or string.match(header, '^ranges')
  elseif not is_whole then
    return redis.error_reply('KAFKA_STORAGE_ERROR ' .. share .. ': field h:' .. group .. ' is malformed')
  end
end
-- Entries of a log that compaction or the lake moves leave the stream, and with it a Redis group.
local function begin_kind(wanted)
  return kind or (lake_start >= 0 or held[4] or held[5]) and 'ranges' or wanted
end
