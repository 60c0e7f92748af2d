-- expel_entries(stream, end_offset, limit): in a log of format batch that ends at `end_offset`, removes up to `limit`
-- entries, and of large ones a few milliseconds' worth, after its end, which are not Korvet's, and sets
-- the stream's last id back to that end once there are none left. The stream has to exist. Returns how many were
-- removed, and whether none are left.
local function expel_entries(stream, end_offset, limit)
  local chunk, bytes_max = 50, 4194304 -- entries copied into Lua at once, and bytes in all

  local info, named = redis.call('XINFO', 'STREAM', stream), {}
  for i = 1, #info, 2 do
    named[info[i]] = info[i + 1]
  end

  local removed, emptied, bytes = 0, false, 0
  while removed < limit and bytes < bytes_max do
    -- The first comes alone, the others as many at once as there is room for, of entries like those before.
    local fitting = math.ceil((bytes_max - bytes) * removed / math.max(bytes, 1))
    local entries = redis.call('XRANGE', stream, string.format('(%d-0', end_offset), '+', 'COUNT',
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
    removed = removed + redis.call('XDEL', stream, unpack(ids))
  end

  -- XSETID refuses an id below the largest deleted one, so that one goes first; 0-0 would not be taken.
  local end_id = end_offset > 0 and string.format('%d-0', end_offset) or '0-1'
  if removed > 0 or emptied then
    redis.call('XSETID', stream, named['last-generated-id'], 'ENTRIESADDED', named['entries-added'] - removed,
      'MAXDELETEDID', end_id)
  end
  if emptied then
    redis.call('XSETID', stream, end_id)
  end
  return removed, emptied
end
