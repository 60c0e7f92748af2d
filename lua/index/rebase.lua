#!lua flags=allow-oom
-- Forgets timestamps of records that have left the log: makes the largest timestamps of the index those of its intervals
-- from the log's start on. One bounded step.
-- KEYS     1 state
--          2 index
-- ARGV     1 topic id
--          2 most rows
--          3 offset of the first row above the start (-1: nothing is known of it)
--          4 the largest timestamp from the start up to it
-- Returns  {rows changed, 1 if another step is needed else 0}
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state or index)
--
-- Rows that were changed and rows still to change rise together: what is left is too large, never too small. The field
-- `rebase` of the state holds how far the steps have come, so that an unfinished one is found.
-- allow-oom: a row is replaced by one that is no longer.

local state, index = KEYS[1], KEYS[2]
local topic_id, limit, first_row, first_interval = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

-- @include shared/index_rows
-- @include shared/whole_number

local held = redis.call('HMGET', state, 'topic', 'log', 'rebase')
-- @include shared/log_fields
local reached = whole(held[3] or '0')
if not reached then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
end

local function later(one, other)
  return tonumber(other) > tonumber(one) and other or one
end

local largest_text
if reached > start then
  local row = rows_of(redis.call('ZRANGEBYSCORE', index, held[3], held[3], 'WITHSCORES'))
  largest_text = row and row[1] and row[1].largest_text
end
local from = largest_text and held[3] or string.format('%d', start)
local answer = redis.call('ZRANGEBYSCORE', index, '(' .. from, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local rows = rows_of(answer)
if not rows then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. index .. ' is malformed')
end

local changed = 0
for at, row in ipairs(rows) do
  local offset = string.format('%d', row.offset)
  local row_interval = row.interval_text
  if offset == first_row and tonumber(first_interval) < row.interval then
    row_interval = first_interval
  end
  largest_text = largest_text and later(largest_text, row_interval) or row_interval
  if largest_text == row.largest_text and row_interval == row.interval_text then
    -- From here on every row follows from this one.
    redis.call('HDEL', state, 'rebase')
    return {changed, 0}
  end
  redis.call('ZADD', index, offset,
    string.format('%d:%d:%s:%s', row.records, row.bytes, largest_text, row_interval))
  -- Last: while the slot moves Redis refuses a script a key that it has emptied.
  redis.call('ZREM', index, answer[2 * at - 1])
  changed, from = changed + 1, offset
end
if #rows == limit then
  redis.call('HSET', state, 'rebase', from)
  return {changed, 1}
end
redis.call('HDEL', state, 'rebase')
largest = math.min(math.max(tonumber(largest_text or -1), interval), exact_max)
-- @include shared/log_packed
redis.call('HSET', state, 'log', packed_log)
return {changed, 0}
