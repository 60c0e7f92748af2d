#!lua flags=allow-oom
-- Frees the memory of entries that were compacted: they are in the compacted segment, or nowhere. One bounded step.
-- KEYS     1 stream
--          2 state
-- ARGV     1 topic id
--          2 offset sequence bits (0, -1: dense ids)
--          3 most entries that one XTRIM takes
--          4 most bytes of them if all are like the first
-- Returns  {entries freed, 1 if another step is needed else 0}
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state)
--
-- XTRIM with `~` frees whole nodes only and takes no node with more entries than its LIMIT, so a second one tries what
-- the first could not. What it leaves is less than a node, and goes with what follows.
-- allow-oom: what frees memory must work if none is left.

local stream, state = KEYS[1], KEYS[2]
local topic_id, bits, limit, bytes_max = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local large_nodes = 100 -- times the limit, for nodes that hold more entries than it

local held = redis.call('HMGET', state, 'topic', 'log', 'clean_end')
-- @include shared/log_fields
-- @include shared/whole_number
local clean_end = whole(held[3] or '0')
if not clean_end then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end
if clean_end == 0 then
  return {0, 0}
end

-- @include shared/entry_ids
local id = id_after(clean_end)
local oldest = redis.call('XRANGE', stream, '-', '(' .. id, 'COUNT', 1)[1]
if not oldest then
  return {0, 0}
end
local size = 0
for _, field in ipairs(oldest[2]) do
  size = size + #field
end
limit = math.max(1, math.min(limit, math.floor(bytes_max / math.max(size, 1))))
for _, most in ipairs({limit, limit * large_nodes}) do
  local removed = redis.call('XTRIM', stream, 'MINID', '~', id, 'LIMIT', most)
  if removed > 0 then
    entries = math.max(entries - removed, 0)
-- @include shared/log_packed
    redis.call('HSET', state, 'log', packed_log)
    return {removed, 1}
  end
end
return {0, 0}
