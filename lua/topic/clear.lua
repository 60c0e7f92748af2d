#!lua flags=allow-oom
-- Fences a partition of a topic marked as deleted, and deletes its log and side keys, in bounded steps.
-- KEYS     1 state
--          2 stream
--          3 index
--          4 moving
--          5 clean:0
--          6 clean:1
--          7 open
--          8 aborted
--          9 share
-- ARGV     1 topic id
--          2 most entries to free
--          3 most bytes of them
--          4 channel of the partition
-- Returns  1 if the partition is deleted completely, 0 if it needs another step
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (shared/log_fields; never here)
--
-- Fenced means that the state has a topic id that no request has: appends, commits, reads and steps of the keeper are
-- refused, and fetches that wait are woken. A partition of another topic id, which was created meanwhile, is left alone,
-- and one without a state was deleted before.
-- A state of another type is no log, which refuses requests as well: it stays until all is deleted. To put a fenced one in
-- its place would fail between the two while the slot moves (shared/slot_stays).
-- The size of entries is an average of the bytes that the state has counted. Streams are emptied here and not by UNLINK,
-- which leaves it to another thread: meanwhile that thread holds the lock of the allocator (glibc's, above all), and
-- Redis gets no memory for any client, for a hundred milliseconds and more at a time.
-- allow-oom: what frees memory must work when there is none left.

local state, streams = KEYS[1], {KEYS[2], KEYS[4], KEYS[5], KEYS[6]}
local topic_id, entries_left, bytes_left, channel = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local fence = 'deleted ' .. topic_id

local owner = redis.pcall('HGET', state, 'topic')
local is_log = type(owner) ~= 'table'
if is_log and owner ~= topic_id and owner ~= fence then
  return 1
end
if owner ~= fence then
  if is_log then
    redis.call('HSET', state, 'topic', fence)
  end
  -- No offset: a fetch that waits on the partition reads again, and finds that it is gone.
  redis.call('SPUBLISH', channel, '-1')
end

local lengths, entries = {}, 0
for n, stream in ipairs(streams) do
  local length = redis.pcall('XLEN', stream)
  lengths[n] = type(length) == 'number' and length or 0 -- of another type: no log
  entries = entries + lengths[n]
end
local log, gone = unpack(is_log and redis.call('HMGET', state, 'log', 'start_bytes') or {})
local function bytes_of(held)
-- @include shared/log_fields
  return bytes
end
local bytes = tonumber(bytes_of({topic_id, log})) or 0 -- of a malformed state
gone = tonumber(gone or '') or 0
local size = math.max(bytes - gone, entries) / math.max(entries, 1)
for n, stream in ipairs(streams) do
  if lengths[n] > 0 and entries_left > 0 and bytes_left > 0 then
    -- At least one: steps that free nothing would have no end.
    local most = math.max(1, math.floor(math.min(lengths[n], entries_left, bytes_left / size)))
    redis.call('XTRIM', stream, 'MAXLEN', string.format('%d', lengths[n] - most))
    entries_left, bytes_left = entries_left - most, bytes_left - most * size
    entries, gone = entries - most, gone + most * size
  end
end
if entries > 0 then
  if is_log then
    redis.call('HSET', state, 'start_bytes', string.format('%d', gone)) -- for the next step
  end
  return 0
end
redis.call('UNLINK', unpack(KEYS))
return 1
