-- Takes the entries past the log's end into it, in place, before an append writes its first; what it must leave to
-- log/renumber ends the append, with nothing written.
-- Needs   what shared/append_begin and shared/log_fields leave, dense, now_ms; shared/entry_ids,
--         shared/external_entry, shared/renumbering
-- Leaves  next_offset, first, records, bytes, largest, interval, moved
local again = pack('>BI4', 1, 0)
local external_max, external_bytes_max = 2000, 4194304 -- what an append takes in itself, some ms of Redis at the worst
local last_of_all = '18446744073709551615-18446744073709551615' -- no id comes after it, not even in a range
local to_move, last_id, taken, taken_bytes = {}, id_of_end(next_offset), 0, 0
while true do
  -- The first comes alone, the others as many at once as there is room for, of entries like those before.
  local fitting = math.floor(external_bytes_max * taken / math.max(taken_bytes, 1))
  local others = call('XRANGE', stream, '(' .. last_id, '+', 'COUNT', math.max(1, math.min(100, fitting)))
  if not others[1] then
    break
  end
  for _, entry in ipairs(others) do
    last_id = entry[1]
    local fields_of, end_offset = entry[2], end_of_id(last_id)
    local entry_bytes, timestamp = measure(fields_of, 1)
    if dense and (to_move[1] or end_offset ~= next_offset + 1 or not timestamp) then
      if #fields_of > arguments_max then
        return again
      end
      if not timestamp then
        timestamp = time_of(last_id, now_ms)
        fields_of[#fields_of + 1], fields_of[#fields_of + 2] = 'timestamp', timestamp
        entry_bytes = entry_bytes + #'timestamp' + #timestamp
      end
      to_move[#to_move + 1], end_offset = entry, next_offset + 1
    end
    taken, taken_bytes = taken + 1, taken_bytes + entry_bytes
    if not end_offset or last_id == last_of_all or taken > external_max or taken_bytes > external_bytes_max then
      return again
    end
    local entry_stamp = math.min(tonumber(timestamp or time_of(last_id, now_ms)), exact_max)
    records, bytes = records + 1, bytes + entry_bytes
    largest, interval = math.max(largest, entry_stamp), math.max(interval, entry_stamp)
    next_offset = end_offset
    first = first >= 0 and first or next_offset - 1
  end
end
if taken == 0 then
  return again -- it is deleted, and its id is still the stream's last
end
if to_move[1] then
  local end_offset, ids, others = next_offset - #to_move, {}, {}
  local last, added, deleted = stream_ids()
  if end_offset == 0 and deleted ~= '0-0' then
    return again
  end
  for n, entry in ipairs(to_move) do
    ids[n] = entry[1]
    if entry[1] ~= id_of_end(end_offset + n) then
      others[#others + 1] = entry[1]
    end
  end
  remove(ids, end_offset)
  set_back(end_offset, last, added - #to_move, deleted, true)
  moved = #others
  forget(others)
  if moved > 0 then
    go_on_at(next_offset - moved)
  end
  for n, entry in ipairs(to_move) do
    call('XADD', stream, id_of_end(end_offset + n), unpack(entry[2]))
  end
end
