-- What scripts need that give entries past a log's end other ids. Groups are Redis groups of the stream: with dense ids all of
-- them, else those that are parts of share groups.
-- Needs   stream, bits, share_groups (name -> true; nil: all groups count); shared/entry_ids
-- Leaves  arguments_max: no entry of more fields and values can be moved; stream_ids(): last id, entries added, largest
--         deleted id; remove(ids, end_offset): takes the first entries past the end of the log out of the stream;
--         lowest_end(end_offset, deleted): the lowest end that the next entry can follow; set_back(end_offset, last_id, added,
--         deleted, is_empty): counts `added` entries, and makes that lowest end the last id if nothing is left past it, returns
--         it; forget(ids): for groups these entries are no longer pending; go_on_at(end_offset): groups that have read past
--         it go on there
local arguments_max = 7900 -- Lua's stack holds 8000 values, and XADD has some of its own

local function stream_ids()
  if redis.call('EXISTS', stream) == 0 then
    return '0-0', 0, '0-0'
  end
  local info, named = redis.call('XINFO', 'STREAM', stream), {}
  for i = 1, #info, 2 do
    named[info[i]] = info[i + 1]
  end
  return named['last-generated-id'], named['entries-added'], named['max-deleted-entry-id']
end

-- Redis remembers what XDEL deleted, and takes no last id below it: in an empty log the first entry could not be 0-1.
local function remove(ids, end_offset)
  if end_offset == 0 then
    redis.call('XTRIM', stream, 'MAXLEN', redis.call('XLEN', stream) - #ids)
  else
    redis.call('XDEL', stream, unpack(ids))
  end
end

-- Where a writer has deleted an entry of an empty log itself, Redis takes no last id below 0-1.
local function lowest_end(end_offset, deleted)
  return id_of_end(end_offset) == '0-0' and deleted ~= '0-0' and end_of_id('0-1') or end_offset
end

-- What was removed is not deleted.
local function set_back(end_offset, last_id, added, deleted, is_empty)
  local lowest, deleted_end = lowest_end(end_offset, deleted), end_of_id(deleted)
  local end_id = id_of_end(lowest)
  if deleted == '0-0' then
    deleted = end_id == '0-0' and '0-0' or '0-1'
  elseif not deleted_end or deleted_end > end_offset then
    deleted = end_id
  end
  redis.call('XSETID', stream, last_id, 'ENTRIESADDED', added, 'MAXDELETEDID', deleted)
  if is_empty then
    redis.call('XSETID', stream, end_id)
  end
  return lowest
end

local function is_before(one, other)
  local ms, sequence = string.match(one, '^(%d+)-(%d+)$')
  local other_ms, other_sequence = string.match(other, '^(%d+)-(%d+)$')
  ms, other_ms = tonumber(ms), tonumber(other_ms)
  return ms < other_ms or ms == other_ms and tonumber(sequence) < tonumber(other_sequence)
end

-- The groups that count, with the last id that each has read.
local function groups()
  local positions, with_pending = {}, {}
  for _, info in ipairs(redis.call('EXISTS', stream) == 1 and redis.call('XINFO', 'GROUPS', stream) or {}) do
    local named = {}
    for at = 1, #info, 2 do
      named[info[at]] = info[at + 1]
    end
    if not share_groups or share_groups[named.name] then
      positions[named.name] = named['last-delivered-id']
      with_pending[#with_pending + 1] = named.pending > 0 and named.name or nil
    end
  end
  return positions, with_pending
end

-- Entries with these ids are gone, and come again under others.
local names
local function forget(ids)
  if ids[1] and not names then
    names = select(2, groups())
  end
  for _, name in ipairs(ids[1] and names or {}) do
    redis.call('XACK', stream, name, unpack(ids))
  end
end

local function go_on_at(end_offset)
  local last_id = id_of_end(end_offset)
  for name, last in pairs(groups()) do
    if is_before(last_id, last) then
      redis.call('XGROUP', 'SETID', stream, name, last_id)
    end
  end
end
