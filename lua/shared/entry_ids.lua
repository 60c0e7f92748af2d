-- The ids of a log's entries, by the offset just past each: its end.
-- Needs   bits: offset sequence bits; 0 (format record) or -1 (format batch): dense ids, `0-<end>`
-- Leaves  offsets_end; id_of_end(end_offset), the id of an entry that ends there, "0-0" if there can be none;
--         end_of_id(id), nil for an id that names no offset; id_after(end_offset): all entries below this id end there or
--         before, and none of them is one that names no offset
local offsets_end = 9007199254740992 -- 2^53: the end of exact numbers in Lua

local function id_of_end(end_offset)
  if bits <= 0 then
    return string.format('0-%d', end_offset)
  elseif end_offset == 0 then
    return '0-0'
  end
  local width = 2 ^ bits
  local ms = math.floor((end_offset - 1) / width)
  return string.format('%d-%d', ms, end_offset - 1 - ms * width)
end

-- Ids may exceed 2^53: compared, never computed.
local function end_of_id(id)
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  ms, sequence = tonumber(ms), tonumber(sequence)
  if bits <= 0 then
    return ms == 0 and sequence < offsets_end and sequence or nil
  end
  local width = 2 ^ bits
  return sequence < width and ms < offsets_end / width and ms * width + sequence + 1 or nil
end

local function id_after(end_offset)
  local ms, sequence = string.match(id_of_end(end_offset), '^(%d+)-(%d+)$')
  return string.format('%s-%d', ms, sequence + 1)
end
