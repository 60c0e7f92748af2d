#!lua flags=allow-oom
-- Deletes logs and side keys of some partitions of a topic marked as deleted; wakes waiting fetches. One bounded step.
-- KEYS     for each partition: state, stream, producers, index, moving, clean:0, clean:1
-- ARGV     topic id, most entries to free, most bytes of them; then the channel of each partition
-- Returns  number of partitions, from the first on, that are deleted completely; the others need another step
-- Errors   none
--
-- The state has the topic id of the partition: one of another topic id, which was created meanwhile, is left alone, and
-- one without a state was deleted before. All keys of a partition lie in one slot of Redis Cluster.
-- The size of entries is an average of the bytes that the state has counted. Streams are emptied here and not by UNLINK,
-- which leaves that to another thread: as long as that takes it holds the lock of the allocator (glibc's, above all), and
-- Redis gets no memory for any client, for a hundred milliseconds and more at a time.
-- allow-oom: what frees memory must work when there is none left.

local topic_id, entries_left, bytes_left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local keys_per_partition, first_channel = 7, 4

-- Returns whether the streams of a partition are empty now.
local function empty(state, streams)
  local lengths, entries = {}, 0
  for n, stream in ipairs(streams) do
    local length = redis.pcall('XLEN', stream)
    lengths[n] = type(length) == 'number' and length or 0 -- of another type: no log
    entries = entries + lengths[n]
  end
  local counted = redis.call('HMGET', state, 'bytes', 'start_bytes')
  local bytes, gone = tonumber(counted[1] or '') or 0, tonumber(counted[2] or '') or 0
  local size = math.max(bytes - gone, entries) / math.max(entries, 1)
  local left = entries
  for n, stream in ipairs(streams) do
    if lengths[n] > 0 and entries_left > 0 and bytes_left > 0 then
      -- At least one: steps that free nothing would have no end.
      local most = math.max(1, math.floor(math.min(lengths[n], entries_left, bytes_left / size)))
      redis.call('XTRIM', stream, 'MAXLEN', string.format('%d', lengths[n] - most))
      entries_left, bytes_left = entries_left - most, bytes_left - most * size
      left, gone = left - most, gone + most * size
    end
  end
  redis.call('HSET', state, 'start_bytes', string.format('%d', gone)) -- for the next step
  return left == 0
end

local finished = 0
for at = 1, #KEYS, keys_per_partition do
  local state = KEYS[at]
  local owner = redis.pcall('HGET', state, 'topic')
  if owner == topic_id or owner == 'deleted ' .. topic_id then
    if entries_left <= 0 or bytes_left <= 0 then
      return finished
    end
    -- No offset: a fetch that waits on the partition reads again, and finds that it is gone.
    redis.call('PUBLISH', ARGV[first_channel + finished], '-1')
    if not empty(state, {KEYS[at + 1], KEYS[at + 4], KEYS[at + 5], KEYS[at + 6]}) then
      return finished
    end
    redis.call('UNLINK', unpack(KEYS, at, at + keys_per_partition - 1))
  end
  finished = finished + 1
end
return finished
