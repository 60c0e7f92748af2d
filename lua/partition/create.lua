-- Creates a partition: its state, and none of the side keys of a former one of that name. One that is there already stays.
-- KEYS     state, producers, index, moving, clean:0, clean:1, open, aborted, share, stream
-- ARGV     topic id, claim (epoch), end of the claim (ms), "adopt" or "refuse" (a stream that exists already)
-- Returns  0 if the partition is there; otherwise, with nothing done, the claim of the one that is there, of another topic
-- Errors   REQUEST_TIMED_OUT (the claim has ended), INVALID_CONFIG ("refuse", and the stream exists already),
--          TRYAGAIN (shared/slot_stays)
--
-- topic/claim says what a claim is. In format record a stream that exists already is adopted as it is; in format batch its
-- entries could be no records, so it is refused. A state of another topic id was left by a former topic if its claim is
-- lower. A higher one is of a topic created since, if this call comes late; or of one that a failover has taken from the
-- registry, with its epochs. A state without a claim is of a version that had none.

local state, stream = KEYS[1], KEYS[10]
local topic_id, claim, claim_until, refuse_stream = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == 'refuse'

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
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
if refuse_stream and redis.call('EXISTS', stream) == 1 then
  return redis.error_reply('INVALID_CONFIG ' .. stream .. ' exists already: only storage.format=record adopts it')
end

-- @include shared/slot_stays
redis.call('UNLINK', unpack(KEYS, 1, 9))
redis.call('HSET', state, 'topic', topic_id, 'next', '0', 'start', '0', 'bytes', '0', 'max_timestamp', '-1', 'claim', claim)
return 0
