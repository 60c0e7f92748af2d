#!lua flags=allow-oom
-- Ends a broker's registration, if it is still that of this start of the broker.
-- KEYS     brokers
-- ARGV     broker id, incarnation
-- Returns  1 if it was ended, 0 if it is gone or of another start
-- Errors   none

local brokers, id, incarnation = KEYS[1], ARGV[1], ARGV[2]

local text = redis.call('HGET', brokers, id)
local readable, row = pcall(cjson.decode, text or '')
if readable and type(row) == 'table' and row.incarnation == incarnation then
  return redis.call('HDEL', brokers, id)
end
return 0
