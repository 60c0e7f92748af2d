-- Reads the entries of a partition in storage format record that are committed, as a Kafka consumer does with
-- isolation.level=read_committed: none of an open or aborted transaction, and no markers. For any Redis client:
--
--   redis-cli --eval committed.lua korvet:orders:0 '{korvet:orders:0}:state' '{korvet:orders:0}:aborted' , - 100
--
-- KEYS     stream, state, aborted
-- ARGV     where to begin ("-", an id, or "(" and the id read last), most entries to look at, offset.sequence.bits of the
--          topic (10 if it is not given)
-- Returns  {the id to go on after ("(" before it continues there), or "" if nothing was there to read, entries as XRANGE
--          returns them}
-- Errors   none

local stream, state, aborted = KEYS[1], KEYS[2], KEYS[3]
local begin, count, width = ARGV[1], tonumber(ARGV[2]), 2 ^ tonumber(ARGV[3] or '10')

local held = redis.call('HMGET', state, 'log', 'open', 'clean_end')
local log_end, log_start, _, lake_start = struct.unpack('>I8I8i8i8', held[1] or string.rep('\0', 32))
-- What lies past the log's end is not in the log yet, and what lies past the first open transaction is undecided. Below
-- the log's start entries may be left that are deleted, and below the end of the compacted part copies of what it has.
local stable = math.min(log_end, tonumber(held[2] or 'inf'))
local start = math.max(log_start, lake_start, tonumber(held[3] or '0'))

local function offset_of(id)
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms) * width + tonumber(sequence)
end

local last, first_offset, entries = '', nil, {}
for _, entry in ipairs(redis.call('XRANGE', stream, begin, '+', 'COUNT', count)) do
  local offset = offset_of(entry[1])
  if offset >= stable then
    break
  end
  last = entry[1]
  if offset >= start then
    first_offset = first_offset or offset
    entries[#entries + 1] = entry
  end
end
if not first_offset then
  return {last, {}}
end

-- Of each producer the transactions that were aborted by markers from here on, as {first offset, offset of the marker}.
local transactions = {}
local rows = redis.call('ZRANGEBYSCORE', aborted, string.format('%d', first_offset), '+inf', 'WITHSCORES')
for at = 1, #rows, 2 do
  local producer, first = string.match(rows[at], '^(%d+):(%d+):')
  transactions[producer] = transactions[producer] or {}
  table.insert(transactions[producer], {tonumber(first), tonumber(rows[at + 1])})
end

local committed = {}
for _, entry in ipairs(entries) do
  local fields, keeps = entry[2], true
  for at = 1, #fields, 2 do
    if fields[at] == 'korvet.marker' then
      keeps = false
    elseif fields[at] == 'korvet.producer' then
      local producer, offset = string.match(fields[at + 1], '^(%d+):'), offset_of(entry[1])
      for _, range in ipairs(transactions[producer] or {}) do
        keeps = keeps and not (range[1] <= offset and offset < range[2])
      end
    end
  end
  if keeps then
    committed[#committed + 1] = entry
  end
end
return {last, committed}
