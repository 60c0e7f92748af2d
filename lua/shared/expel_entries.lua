-- expel_entries(end_offset, limit): in a log of format batch that ends at `end_offset`, removes up to `limit` entries, and of
-- large ones a few milliseconds' worth, after its end, which are not Korvet's. Redis groups that have read past it go on
-- there. The stream has to exist. Returns how many were removed, and once none are left the lowest end that the next entry
-- can follow: the log's, or 1 instead of 0.
-- Needs stream; shared/entry_ids, shared/renumbering
local function expel_entries(end_offset, limit)
  local chunk, bytes_max = 50, 4194304 -- entries copied into Lua at once, and bytes in all
  local last_id, added, deleted = stream_ids()

  local removed, emptied, bytes = 0, false, 0
  while removed < limit and bytes < bytes_max do
    -- The first comes alone, the others as many at once as there is room for, of entries like those before.
    local fitting = math.ceil((bytes_max - bytes) * removed / math.max(bytes, 1))
    local entries = redis.call('XRANGE', stream, '(' .. id_of_end(end_offset), '+', 'COUNT',
      math.min(math.max(fitting, 1), chunk, limit - removed))
    if #entries == 0 then
      emptied = true
      break
    end
    local ids = {}
    for _, entry in ipairs(entries) do
      ids[#ids + 1] = entry[1]
      for _, field in ipairs(entry[2]) do
        bytes = bytes + #field
      end
    end
    remove(ids, end_offset)
    removed = removed + #ids
  end

  local lowest = lowest_end(end_offset, deleted)
  -- A stream that was deleted and made again never had an entry, and Redis refuses that one was deleted from it.
  if removed > 0 or last_id ~= '0-0' and last_id ~= id_of_end(lowest) then
    set_back(end_offset, last_id, added - removed, deleted, emptied)
    if emptied then
      go_on_at(end_offset)
    end
  end
  return removed, emptied and lowest
end
