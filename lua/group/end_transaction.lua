#!lua flags=allow-oom
-- Commits or drops the offsets that a transaction was to commit for a group.
-- KEYS     1 group
--          2 offsets
--          3 pending
-- ARGV     1 when the group was listed (shared/listed)
--          2 producer id
--          3 epoch
--          4 number of the transaction
--          5 "commit" or "abort"
-- Returns  {"UNLISTED", now (ms)} if there is no such group and its name is not listed: nothing is done. Else what was
--          committed: for each partition its stream and row; empty too if the transaction had ended before
-- Errors   KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- The transaction's number stays, so that later offsets are refused. If the group does not exist it leaves the
-- time alone, for the keeper to find the number: without a state it is no group, unless something was committed. As in
-- Kafka, an offset that was committed after the transaction's own commit stays. allow-oom: consumers go on when memory is
-- full.

-- @include shared/clock

local group, offsets, pending = KEYS[1], KEYS[2], KEYS[3]
local listed_at, producer_id, epoch = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local number, commits = tonumber(ARGV[4]), ARGV[5] == 'commit'
local at_once = 1000 -- arguments: unpack takes no more than some thousands
-- @include shared/listed
-- @include shared/pending_row

if is_ended(number) then
  return {}
end
local is_missing = redis.call('HEXISTS', group, 'state') == 0
if is_missing and not is_listed(listed_at) then
  return {'UNLISTED', now_ms}
end
local streams, applied = {}, {}
if commits and stored and stored.number == number then
  for stream in pairs(stored.rows) do
    streams[#streams + 1] = stream
  end
end
local function committed_at(row)
  return tonumber(string.match(row or '', '"ms":(%d+)}$') or '') or 0
end
for start = 1, #streams, at_once do
  local last = math.min(start + at_once - 1, #streams)
  for n, row in ipairs(redis.call('HMGET', offsets, unpack(streams, start, last))) do
    local stream = streams[start + n - 1]
    if committed_at(row) <= committed_at(stored.rows[stream]) then
      applied[#applied + 1], applied[#applied + 2] = stream, stored.rows[stream]
    end
  end
end
for at = 1, #applied, at_once do
  redis.call('HSET', offsets, unpack(applied, at, math.min(at + at_once - 1, #applied)))
end
redis.call('HSET', pending, producer_id, string.format('{"number":%d,"epoch":%d,"open":false,"ms":%d,"rows":{}}', number,
  math.max(epoch, stored and stored.epoch or 0), now_ms))
if is_missing then
  redis.call('HSET', group, 'since', string.format('%d', now_ms))
  if applied[1] then
    redis.call('HSET', group, 'state', 'Empty', 'generation', '0')
  end
end
return applied
