#!lua flags=allow-oom
-- Ends a pass of compaction: from now on what it has written is the compacted part of the log, up to the pass's end.
-- KEYS     1 state
--          2 index
--          3 clean:0
--          4 clean:1
--          5 aborted
-- ARGV     1 topic id
--          2 token of the pass
--          3 which of the two it has written (0 or 1)
--          4 offset up to which it has compacted
--          5 records that it has kept
--          6 bytes that it has kept
--          7 the largest timestamp after the last of its rows (-1: none)
--          8 the new history
--          9 "tombstones" if its dirty part had some, else ""
--          10 offset below which it has removed the markers of transactions (0: none)
--          11 and on: for each new index row: its offset; records kept from there on; bytes kept; largest timestamp
--            below it; largest timestamp since the row before
-- Returns  1; 0 if another pass was begun meanwhile, this one given up, or a write of it lost: nothing is done
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state or index)
--
-- The row at the pass's end stays, and with it all counters above: those of the rows below are counted back from it, so
-- that between any two rows and above the log's start there is just what exists. The history is "<end>@<ms> ...":
-- tombstones below `end` were first compacted at `ms`, and not before. The row of an aborted transaction in `aborted` goes
-- with its marker: its records went in an earlier pass, and a reader that meets the marker needs the row no more.
-- allow-oom: this frees memory.

local state, index, aborted = KEYS[1], KEYS[2], KEYS[5]
local clean = {KEYS[3], KEYS[4]}
local topic_id, token, which, clean_end = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local kept_records, kept_bytes, last_interval = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local history, has_tombstones, markers_end = ARGV[8], ARGV[9] == 'tombstones', ARGV[10]
local first_row, row_size = 11, 5

local held = redis.call('HMGET', state, 'topic', 'log', 'clean_token')
-- @include shared/log_fields
if held[3] ~= token then
  return 0
end
local row = redis.call('ZRANGEBYSCORE', index, clean_end, clean_end, 'LIMIT', 0, 1)[1]
local row_records, row_bytes, row_largest = string.match(row or '', '^(%d+):(%d+):(%-?%d+):%-?%d+$')
if not row_records then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. index .. ' is malformed')
end
row_records, row_bytes = tonumber(row_records), tonumber(row_bytes)
redis.call('ZCARD', aborted) -- refuses a key of another type before anything is written

if start >= tonumber(clean_end) then
  -- The log's start has come past all of it meanwhile.
  redis.call('HDEL', state, 'clean_token', 'clean', 'clean_end', 'clean_bytes', 'clean_history')
  redis.call('UNLINK', clean[1], clean[2])
  return 1
end

if has_tombstones then
-- @include shared/clock
  history = string.format('%s%s%s@%d', history, history == '' and '' or ' ', clean_end, now_ms)
end
redis.call('ZREMRANGEBYSCORE', index, '-inf', '(' .. clean_end)
local start_records, start_bytes = kept_records, kept_bytes -- counted back: to the row at or below the start
local pairs_left = {}
for at = first_row, #ARGV, row_size do
  local after_records, after_bytes = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  if tonumber(ARGV[at]) <= start then
    start_records, start_bytes = after_records, after_bytes
  end
  -- If the counters are too small for what is there the row is left out: they count a part only.
  if after_records <= row_records and after_bytes <= row_bytes then
    pairs_left[#pairs_left + 1] = ARGV[at]
    pairs_left[#pairs_left + 1] = string.format('%d:%d:%s:%s', row_records - after_records, row_bytes - after_bytes,
      ARGV[at + 3], ARGV[at + 4])
  end
  if #pairs_left >= 1000 then
    redis.call('ZADD', index, unpack(pairs_left))
    pairs_left = {}
  end
end
pairs_left[#pairs_left + 1] = clean_end
local last_row = string.format('%d:%d:%s:%s', row_records, row_bytes, row_largest, last_interval)
pairs_left[#pairs_left + 1] = last_row
redis.call('ZADD', index, unpack(pairs_left))
if last_row ~= row then
  redis.call('ZREM', index, row) -- only now: while the slot moves Redis refuses a script a key that it has emptied
end
redis.call('HDEL', state, 'clean_token')
redis.call('HSET', state, 'clean', string.format('%d', which), 'clean_end', clean_end,
  'clean_bytes', string.format('%d', row_bytes), 'clean_history', history,
  'start_records', string.format('%d', math.max(row_records - start_records, 0)),
  'start_bytes', string.format('%d', math.max(row_bytes - start_bytes, 0)))
redis.call('UNLINK', clean[2 - which])
if markers_end ~= '0' then
  redis.call('ZREMRANGEBYSCORE', aborted, '-inf', '(' .. markers_end) -- last, as the ZREM above
end
return 1
