-- A transactional id as it is stored. Needs now_ms and the local `transaction`, the key. `state` is nil if there is none.
-- Producer ids have 63 bits, which no number of Lua holds: they stay texts. The last epoch of a producer id is 32766: so
-- there is always one more to fence it by (KIP-360).

local EPOCH_LAST = 32766

local function malformed(what)
  error({err = 'KAFKA_STORAGE_ERROR ' .. transaction .. ': ' .. what})
end

local FIELDS = {
  'state', 'producer_id', 'last_producer_id', 'next_producer_id', 'epoch', 'last_epoch', 'timeout_ms', 'number', 'started',
  'changed',
}
local fields = redis.pcall('HMGET', transaction, unpack(FIELDS))
if fields.err then
  malformed(fields.err)
end
local stored = {}
for at, name in ipairs(FIELDS) do
  stored[name] = fields[at] or nil
end
if not stored.state and redis.call('EXISTS', transaction) == 1 then
  malformed('the field state is missing')
end

-- The number in a field; 0 in one that is missing of an id that does not exist.
local function number_of(name, most)
  local text = stored[name] or not stored.state and '0' or ''
  if not string.match(text, '^-?%d+$') or tonumber(text) > most then
    malformed('the field ' .. name .. ' is no number')
  end
  return tonumber(text)
end

local state, producer_id = stored.state, stored.producer_id
local last_producer_id, next_producer_id = stored.last_producer_id, stored.next_producer_id
local epoch, last_epoch = number_of('epoch', EPOCH_LAST + 1), number_of('last_epoch', EPOCH_LAST + 1)
local timeout_ms, number = number_of('timeout_ms', 2147483647), number_of('number', 9007199254740991)
local started, changed = number_of('started', 9007199254740991), number_of('changed', 9007199254740991)
local STATES = {
  Empty = true, Ongoing = true, PrepareCommit = true, PrepareAbort = true, CompleteCommit = true, CompleteAbort = true,
}
if state and not (STATES[state] and producer_id and last_producer_id and next_producer_id) then
  malformed('there is no state ' .. state .. ', or a producer id is missing')
end

local function whole(value)
  return string.format('%d', value)
end

-- Goes on with the producer id that follows one without a next epoch.
local function take_next_producer_id()
  if next_producer_id ~= '-1' then
    last_producer_id, producer_id, epoch, next_producer_id = producer_id, next_producer_id, 0, '-1'
  end
end

-- Writes all that is stored of an id besides its partitions and groups, as the locals say.
local function write()
  redis.call('HSET', transaction, 'state', state, 'producer_id', producer_id, 'last_producer_id', last_producer_id,
    'next_producer_id', next_producer_id, 'epoch', whole(epoch), 'last_epoch', whole(last_epoch),
    'timeout_ms', whole(timeout_ms), 'number', whole(number), 'started', whole(started), 'changed', whole(now_ms))
end
