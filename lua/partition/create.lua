-- Creates a partition: its state, and none of the side keys of a former one of that name. One that is there already stays.
-- KEYS     1 state
--          2 index
--          3 moving
--          4 clean:0
--          5 clean:1
--          6 open
--          7 aborted
--          8 share
--          9 stream
-- ARGV     1 topic id
--          2 claim (epoch)
--          3 end of the claim (ms)
--          4 "adopt" or "refuse" (a stream that exists already and has entries)
-- Returns  0 if the partition is there; otherwise, with nothing done, the claim of the one that is there, of another topic
-- Errors   REQUEST_TIMED_OUT (the claim has ended), INVALID_CONFIG ("refuse", and the stream exists already),
--          TRYAGAIN (shared/slot_stays); UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (shared/log_fields; never here)
--
-- topic/claim says what a claim is. In format record a stream that exists already is adopted as it is; in format batch its
-- entries could be no records, so it is refused. A state of another topic id was left by a former topic if its claim is
-- lower. A higher one is of a topic created since, if this call comes late; or of one that a failover has taken from the
-- registry, with its epochs. A state without a claim is of a version that had none.

local state, index, stream = KEYS[1], KEYS[2], KEYS[9]
local topic_id, claim, claim_until, refuse_stream = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == 'refuse'

-- @include shared/clock
if now_ms > claim_until then
  return redis.error_reply('REQUEST_TIMED_OUT creating ' .. stream .. ' took too long')
end
local held = redis.pcall('HMGET', state, 'topic', 'claim') -- an error if of another type: no log
if held[1] == topic_id then
  return 0
end
if held[1] and tonumber(held[2] or '0') >= tonumber(claim) then
  return tonumber(held[2] or '0')
end
if refuse_stream and redis.call('EXISTS', stream) == 1 and redis.pcall('XLEN', stream) ~= 0 then
  return redis.error_reply('INVALID_CONFIG ' .. stream .. ' exists already: only storage.format=record adopts it')
end

-- @include shared/slot_stays
redis.call('UNLINK', unpack(KEYS, 1, 8))
-- Stream and index are there from now on: to a script whose keys are not all there a slot that moves says TRYAGAIN.
if redis.call('EXISTS', stream) == 0 then
  redis.call('XGROUP', 'CREATE', stream, 'korvet', '$', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', stream, 'korvet')
end
redis.call('ZADD', index, 0, '0:0:-1:-1')
held = {topic_id, string.rep('\0', 77)}
-- @include shared/log_fields
first, lake_start, largest, interval, last_epoch = -1, -1, -1, -1, -1
-- @include shared/log_packed
redis.call('HSET', state, 'topic', topic_id, 'log', packed_log, 'claim', claim)
return 0
