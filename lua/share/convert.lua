#!lua flags=allow-oom
-- Makes a part of kind redis one of kind ranges, and destroys its Redis group, since entries are to leave the stream before
-- they leave the log. Plain workers of that group are refused from then on (NOGROUP).
-- KEYS     1 stream
--          2 state
--          3 share
-- ARGV     1 topic id
--          2 offset sequence bits (0: dense ids)
--          3 group (none: any one)
-- Returns  1 if a part was converted, 0 if there is none of kind redis
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state or part; too much is pending)
--
-- Pending entries keep owner, delivery count and the end of their lock. An id that is no offset is dropped: no consumer
-- could get it. Entries past the position of a group that was set back are forgotten, and delivered as if for the first
-- time. allow-oom: a row takes less than the pending entries.

-- @include shared/whole_number

local stream, state, share = KEYS[1], KEYS[2], KEYS[3]
local topic_id, bits, group = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local pending_max = 5000 -- rows: some 5 ms of Redis, once

for _, field in ipairs(group and {} or redis.call('HKEYS', share)) do
  if string.find(field, '^h:') and string.find(redis.call('HGET', share, field), '^redis ') then
    group = string.sub(field, 3)
    break
  end
end
if not group then
  return 0
end

local is_replaced = false
local held = redis.call('HMGET', state, 'topic', 'log', 'epochs', 'clean_token', 'clean')
-- @include shared/log_fields
-- @include shared/share_begin
-- @include shared/share_ranges
-- @include shared/entry_ids
-- @include shared/share_redis

if kind ~= 'redis' then
  return 0
end
-- @include shared/clock
local undelivered, pending = read_group()
if pending and pending > pending_max then
  return redis.error_reply(string.format('KAFKA_STORAGE_ERROR %s: %d entries are pending in group %s, more than %d', stream,
    pending, group, pending_max))
end
undelivered = math.max(undelivered or start, log_start)
for _, row in ipairs(pending and redis.call('XPENDING', stream, group, '-', '+', pending_max) or {}) do
  local offset, owner, idle, count = offset_of(row[1]), row[2], row[3], row[4]
  if offset and offset < undelivered then
    local is_locked = idle < lock_ms_then
    put(offset, offset, math.max(count, 1), is_locked and owner or '', is_locked and now_ms + lock_ms_then - idle or 0)
  end
end
write_ranges(undelivered, now_ms)
if pending then
  redis.call('XGROUP', 'DESTROY', stream, group)
end
return 1
