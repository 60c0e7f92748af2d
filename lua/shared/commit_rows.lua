-- Compares what is to be committed with what is committed.
-- Needs   ARGV from first_argument on: for each partition its stream, topic id, row (JSON) up to its time (ms); offsets,
--         not_after, replaces, now_ms
--         pending_rows: rows by stream that the transaction has already ({} without one); memory_is_full
-- Leaves  outcomes as group/commit returns them, rows: stream and row of each that is to be committed, in turn, now_text,
--         at_once

-- The text by which a row is of a topic. No metadata contains it: JSON writes a backslash before its quotation marks.
local topic_id, mark
local now_text, at_once = string.format('%d', now_ms), 1000 -- arguments: unpack takes no more than some thousands
local outcomes, rows, arguments_per_partition = {}, {}, 3
local function is_late(row)
  return row and (tonumber(string.match(row, '"ms":(%d+)}$')) or 0) > not_after
end
-- Never before the row that is there: the end of a transaction leaves what was committed later, and the clock may go back.
local function time_of(row)
  -- Of two with as many digits the later text is the later time; a match costs more than all else of a row.
  if not row or string.byte(row, -2 - #now_text) == 58 and string.sub(row, -1 - #now_text, -2) <= now_text then
    return now_text
  end
  local text = string.match(row, '"ms":(%d+)}$')
  return text and #text <= 15 and tonumber(text) > now_ms and text or now_text
end
-- Whether a row's metadata is no longer than that of the row before; offset and epoch are numbers of 19 digits at most.
local function takes_no_more(new, old)
  local from, before = string.find(new, '"metadata":', 1, true), old and string.find(old, '"metadata":', 1, true)
  return from and before and #new + #now_text + 1 - from <= #old - before
end
local partitions = (#ARGV - first_argument + 1) / arguments_per_partition
for start = 1, partitions, at_once do
  local streams = {}
  for n = start, math.min(start + at_once - 1, partitions) do
    streams[#streams + 1] = ARGV[first_argument + arguments_per_partition * (n - 1)]
  end
  for n, row in ipairs(redis.call('HMGET', offsets, unpack(streams))) do
    local at = first_argument + arguments_per_partition * (start + n - 2)
    local outcome = 1
    if ARGV[at + 1] ~= topic_id then
      topic_id = ARGV[at + 1]
      mark = '"topic_id":"' .. topic_id .. '"'
    end
    if not_after > 0 and (is_late(row) or is_late(pending_rows[ARGV[at]])) then
      outcome = -1
    elseif row and not replaces and not string.find(row, mark, 1, true) and string.find(row, '"topic_id":"', 1, true) then
      outcome = 0
    elseif memory_is_full and not takes_no_more(ARGV[at + 2], row) then
      outcome = -2
    end
    outcomes[#outcomes + 1] = outcome
    if outcome == 1 then
      rows[#rows + 1], rows[#rows + 2] = ARGV[at], ARGV[at + 2] .. time_of(row) .. '}'
    end
  end
end
