-- The first part of a script about a group's part of a partition, in place: the log, and the header of the part.
-- Needs   stream, state, share, topic_id, group, is_replaced (true: a malformed header is as none, but for its kind)
-- Leaves  log_start (the first offset that there is, the lake included), log_end, epoch (the log's last, "-1" without one),
--         held (the state's fields), header (false without a part), kind ("redis" or "ranges"; nil without a part), start;
--         locked_ms, when locks began last (0: none has); of kind ranges also next_offset and in_flight, of kind redis
--         lock_ms_then, that of the last change;
--         begin_kind(wanted), the kind that a part has or gets
-- The header is `redis <start> <ms of a lock> <locked>` or `ranges <start> <next> <in flight> <locked>`: docs/redis-schema.md.
local held = redis.call('HMGET', state, 'topic', 'next', 'start', 'first', 'lake_start', 'epochs', 'clean_token', 'clean')
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. stream .. ' does not belong to topic id ' .. topic_id)
end
local log_end, log_start = whole(held[2]), whole(held[3])
local first_offset, lake_start = whole(held[4] or '0'), whole(held[5] or '0')
if not (log_end and log_start and first_offset and lake_start) then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end
if held[5] and lake_start < log_start then
  log_start = lake_start
else
  log_start = math.max(log_start, first_offset, lake_start)
end
local epoch = string.match(held[6] or '', '^(%d+)@') or '-1'

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
  return kind or (held[5] or held[7] or held[8]) and 'ranges' or wanted
end
