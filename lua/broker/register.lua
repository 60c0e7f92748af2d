#!lua flags=allow-oom
-- Registers a broker, or renews its registration: until that expires no other broker gets its id.
-- KEYS     1 brokers
--          2 format
-- ARGV     1 broker id (-1: any free one)
--          2 host
--          3 port
--          4 incarnation (unique per start of a broker)
--          5 lease in ms
--          6 "own" (only an earlier start of this broker can have the id) or "ask"
--          7 advertised addresses by listener (JSON: name -> [host, port])
--          8 the broker's version
--          9 its format
--          10 the lowest format that may read its data
--          11 the lowest format that may write its data
--          12 the lowest format of logs that it reads
--          13 "starting" (clients find it in metadata, but it leads nothing yet) or "serving"
-- Returns  the broker's id
-- Errors   DUPLICATE_BROKER_REGISTRATION (a live broker at another address has the id), UNSUPPORTED_VERSION (the data is of
--          a format that this version may not write)
--
-- Host and port are those of one listener, the same one at every start: they identify the broker, and brokers of a
-- version without listeners advertise them.
-- A row of the same address is from an earlier start, and is taken over at once. A row with `listed` is from a stopped
-- broker: its id is free, and the row is deleted after that time. The broker takes the free id that its address had
-- before, else the lowest without a recent broker. A registration that lasts longer than it could by this clock
-- was made before the clock was set back: it ends after twice the time that this broker asks for. allow-oom: a broker must start when memory is full, for
-- topics are deleted through it.
-- The format of data is written where there is none, or one that no log is in (the broker does not start on such a log).
-- A higher format of this broker waits for broker/finalize: until then brokers of the present format may start again.

local brokers, data_format = KEYS[1], KEYS[2]
local id, host, port, incarnation = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local lease_ms, own, listeners = tonumber(ARGV[5]), ARGV[6] == 'own', cjson.decode(ARGV[7])
local version, own_format, reader, writer = ARGV[8], tonumber(ARGV[9]), ARGV[10], ARGV[11]
local lowest_format, starting = tonumber(ARGV[12]), ARGV[13] == 'starting' or nil
local forgotten_after_ms = 86400000

local held = redis.call('HMGET', data_format, 'format', 'writer', 'version')
if held[1] and not (tonumber(held[1]) and tonumber(held[2] or '') and tonumber(held[2]) <= own_format) then
  return redis.error_reply(string.format('UNSUPPORTED_VERSION the data was written by Korvet %s (format %s), and %s (format'
    .. ' %d) may not write it', tostring(held[3]), held[1], version, own_format))
end

-- @include shared/clock

-- Returns nil for a text that is no row: no broker is live by it.
local function read(text)
  local readable, row = pcall(cjson.decode, text)
  if readable and type(row) == 'table' and type(row['until']) == 'number' then
    return row
  end
end

local function is_here(row)
  return row.host == host and row.port == port
end

local forgotten = {} -- deleted last: while the slot moves Redis refuses a script a key that it has emptied
local function free_id()
  local all = redis.call('HGETALL', brokers)
  local before, taken = nil, {}
  for at = 1, #all, 2 do
    local row = read(all[at + 1])
    local number = all[at]:match('^%d+$') and tonumber(all[at])
    if row and row['until'] + forgotten_after_ms < now_ms then
      forgotten[#forgotten + 1] = all[at]
    elseif number then
      taken[number] = not (row and row.listed)
      if row and is_here(row) and (not before or number < before) then
        before = number
      end
    end
  end
  local lowest = 0
  while taken[lowest] do
    lowest = lowest + 1
  end
  return before or lowest
end

if id < 0 then
  id = free_id()
end
local field = string.format('%d', id)
local text = redis.call('HGET', brokers, field)
local row = text and read(text)
local started_ms = now_ms
if row and row.incarnation == incarnation then
  started_ms = tonumber(row.started) or now_ms
elseif row and row['until'] > now_ms and not own and not is_here(row) then
  return redis.error_reply(string.format('DUPLICATE_BROKER_REGISTRATION broker.id %s belongs to a live broker at %s:%s,'
    .. ' whose registration runs for another %d ms', field, tostring(row.host), tostring(row.port), row['until'] - now_ms))
end
if not held[1] or tonumber(held[1]) < lowest_format then
  redis.call('HSET', data_format, 'version', version, 'format', ARGV[9], 'reader', reader, 'writer', writer)
end
redis.call('HSET', brokers, field, cjson.encode({
  host = host, port = port, listeners = listeners, incarnation = incarnation, started = started_ms,
  ['until'] = now_ms + lease_ms, version = version, format = own_format, starting = starting,
}))
local all = redis.call('HGETALL', brokers)
for at = 1, #all, 2 do
  local other = read(all[at + 1])
  local listed_until = other and tonumber(other.listed)
  if listed_until and (listed_until < now_ms or other['until'] > now_ms) then -- the latter where the clock was set back
    redis.call('HDEL', brokers, all[at])
  elseif other and other['until'] > now_ms + 2 * lease_ms then -- half of it more than that of one with other settings
    redis.call('HSET', brokers, all[at],
      (string.gsub(all[at + 1], '"until":[%d.e+]+', string.format('"until":%d', now_ms + 2 * lease_ms))))
  end
end
for _, other in ipairs(forgotten) do
  if other ~= field then
    redis.call('HDEL', brokers, other)
  end
end
return id
