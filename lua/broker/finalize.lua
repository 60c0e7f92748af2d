#!lua flags=allow-oom
-- Raises the format of the data, which brokers may write in from then on, if every live broker has that format.
-- KEYS     1 brokers
--          2 format
-- ARGV     1 version of this broker
--          2 the format
--          3 the lowest format that may read data in it
--          4 the lowest format that may write data in it
--          5 "set" or "validate" (nothing is written)
-- Returns  {} if it was raised, or is that high; else {id, version, highest format} of a live broker that lacks the format,
--          version "" and format 0 if it registered none
-- Errors   none
--
-- Brokers and format lie in one slot: no broker without the format can register between the look at them and the write.

local brokers, data_format = KEYS[1], KEYS[2]
local version, format, reader, writer, mode = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]

-- @include shared/clock

if (tonumber(redis.call('HGET', data_format, 'format') or '') or 0) >= format then
  return {}
end
local all = redis.call('HGETALL', brokers)
for at = 1, #all, 2 do
  local readable, row = pcall(cjson.decode, all[at + 1])
  if readable and type(row) == 'table' and type(row['until']) == 'number' and row['until'] > now_ms then
    local highest = tonumber(row.format) or 0
    if highest < format then
      return {all[at], tostring(row.version or ''), highest}
    end
  end
end
if mode == 'set' then
  redis.call('HSET', data_format, 'version', version, 'format', ARGV[2], 'reader', reader, 'writer', writer)
end
return {}
