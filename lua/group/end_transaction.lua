#!lua flags=allow-oom
-- Commits or drops the offsets that a transaction was to commit for a group.
-- KEYS     group, offsets, pending
-- ARGV     when the group was listed (shared/listed), producer id, epoch, number of the transaction, "commit" or "abort"
-- Returns  {"UNLISTED", now (ms)} if it would create the group and it is not listed: nothing is done. Else what was
--          committed: for each partition its stream and row; empty too if the transaction had ended before
-- Errors   KAFKA_STORAGE_ERROR (what is stored cannot be read)
--
-- The transaction's number stays, so that offsets that come later are refused: also for a group that does not exist, which
-- this creates, for the keeper to find it. As in Kafka, an offset that was committed after the transaction's own commit
-- stays. allow-oom: consumers go on when memory is full.

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
local is_created = redis.call('HEXISTS', group, 'state') == 0
if is_created and not is_listed(listed_at) then
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
if is_created then
  redis.call('HSET', group, 'state', 'Empty', 'generation', '0', 'since', string.format('%d', now_ms))
end
return applied
