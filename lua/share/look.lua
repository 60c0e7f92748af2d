#!lua flags=no-writes
-- Reads where a share group is in a partition.
-- KEYS     1 stream
--          2 state
--          3 share
-- ARGV     1 topic id
--          2 group
--          3 offset sequence bits (0: dense ids)
-- Returns  {start, first offset that nobody has had yet, records in flight, the state's epochs, "initial" if nothing of it was
--          acknowledged, released or delivered again, else ""}, texts; nil if there is no part
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state or part)
--
-- Records that have left the log are not in flight, though share/acquire has not dropped them yet.

-- @include shared/whole_number

local stream, state, share = KEYS[1], KEYS[2], KEYS[3]
local topic_id, group, bits = ARGV[1], ARGV[2], tonumber(ARGV[3])

local is_replaced = false
local held = redis.call('HMGET', state, 'topic', 'log', 'epochs', 'clean_token', 'clean')
-- @include shared/log_fields
-- @include shared/share_begin
-- @include shared/share_ranges
-- @include shared/entry_ids
-- @include shared/share_redis

if not header then
  return false
end
if kind == 'redis' then
  local undelivered, pending = read_group()
  next_offset, in_flight = math.max(undelivered or start, log_start), pending or 0
  start = in_flight > 0 and first_pending(next_offset) or next_offset
  if start < log_start then
    in_flight = in_flight - #redis.call('XPENDING', stream, group, '-', id_of(log_start - 1), in_flight)
    start = in_flight > 0 and first_pending(next_offset, log_start) or next_offset
  end
elseif start < log_start then
  local owners, ranges = read_ranges()
  for at = 1, #ranges, 5 do
    put(unpack(ranges, at, at + 4))
  end
  start, in_flight = new_ranges[1] or next_offset, live
end
return {string.format('%d', math.max(start, log_start)), string.format('%d', math.max(next_offset, log_start)),
  string.format('%d', in_flight), held[3] or '', redis.call('HEXISTS', share, 'n:' .. group) == 1 and 'initial' or ''}
