-- Creates partitions: the state of each, and none of the side keys of a former one of that name.
-- Needs   KEYS, for each new partition: state, producers, index, moving, clean:0, clean:1, stream, from `first_key` to the end
-- A stream that exists already is adopted in format record. In format batch its entries could be no records.
local keys_per_partition = 7

-- Returns an error reply if a stream exists already.
local function streams_refused(first_key)
  for at = first_key, #KEYS, keys_per_partition do
    local stream = KEYS[at + keys_per_partition - 1]
    if redis.call('EXISTS', stream) == 1 then
      return redis.error_reply('INVALID_CONFIG ' .. stream .. ' exists already: only storage.format=record adopts it')
    end
  end
end

local function make_partitions(first_key, topic_id)
  for at = first_key, #KEYS, keys_per_partition do
    redis.call('UNLINK', unpack(KEYS, at, at + keys_per_partition - 2))
    redis.call('HSET', KEYS[at], 'topic', topic_id, 'next', '0', 'start', '0', 'bytes', '0', 'max_timestamp', '-1')
  end
end
