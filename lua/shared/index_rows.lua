-- Defines rows_of(answer): the rows of an answer of ZRANGE WITHSCORES as {offset, records, bytes, largest, interval, and
-- the last two as text}; nil if one is malformed.
local function rows_of(answer)
  local rows = {}
  for at = 1, #answer, 2 do
    local records, bytes, largest, interval = string.match(answer[at], '^(%d+):(%d+):(%-?%d+):(%-?%d+)$')
    if not records then
      return nil
    end
    rows[#rows + 1] = {offset = tonumber(answer[at + 1]), records = tonumber(records), bytes = tonumber(bytes),
      largest = tonumber(largest), interval = tonumber(interval), largest_text = largest, interval_text = interval}
  end
  return rows
end
