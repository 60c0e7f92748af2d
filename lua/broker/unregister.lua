#!lua flags=allow-oom
-- Ends a broker's registration, if it is still that of this start of the broker. For a while clients find it in metadata
-- all the same, as a broker that leads nothing: librdkafka waits indefinitely for the coordinator of a group, or keeps the
-- records of a partition, if the broker leaves the metadata at the moment that its connections end (its issue 5511).
-- KEYS     1 brokers
-- ARGV     1 broker id
--          2 incarnation
--          3 for how many ms it stays in metadata
-- Returns  1 if it was ended, 0 if it is gone or of another start
-- Errors   none

local brokers, id, incarnation, listed_ms = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

-- @include shared/clock

local text = redis.call('HGET', brokers, id)
local readable, row = pcall(cjson.decode, text or '')
if readable and type(row) == 'table' and row.incarnation == incarnation and not row.listed then
  row['until'], row.listed = now_ms, now_ms + listed_ms
  redis.call('HSET', brokers, id, cjson.encode(row))
  return 1
end
return 0
