-- A part of kind ranges: the ranges of offsets below `next_offset` that are not done with, each `first, last, delivery
-- count, owner, end of its lock (ms)`. Who may have it has no owner, '', and no end, 0.
-- Needs   share, group, log_start; of a part that is there its header (shared/share_begin)
-- Leaves  read_ranges(), which returns owners and ranges, and ends the script if they are malformed: flat, the owner being a
--         number in owners, 0 for none; put(first, last, count, owner, lock_end), which adds a range after those before, and
--         `live`, the number of their records; write_ranges(next_offset, begun_ms), which writes what was put
--         and when locks began last
-- What lies below the start of the log is dropped. Neighbours of one state are one range.
local new_owners, new_numbers, new_ranges, size, live = {}, {[''] = 0}, {}, 0, 0

-- Fails, or returns false, if they are malformed.
local function are_ranges(owners, ranges)
  local last, records = -1, 0
  owners[0] = ''
  for at = 1, #ranges, 5 do
    local first, stop, lock_end = ranges[at], ranges[at + 1], ranges[at + 4]
    if not (first > last and stop >= first and ranges[at + 2] > 0 and owners[ranges[at + 3]] and lock_end >= 0) then
      return false
    end
    records = records + stop - first + 1
    last = stop
  end
  return records == in_flight and last < next_offset
end

local function read_ranges()
  local text = redis.call('HGET', share, 'r:' .. group)
  local readable, owners, ranges = true, {}, {}
  if text then
    readable, owners, ranges = pcall(cmsgpack.unpack, text)
  end
  if readable then
    local compared, are = pcall(are_ranges, owners, ranges)
    if compared and are then
      return owners, ranges
    end
  end
  error({err = 'KAFKA_STORAGE_ERROR ' .. share .. ': field r:' .. group .. ' is malformed'})
end

local function put(first, last, count, owner, lock_end)
  first = math.max(first, log_start)
  if first > last then
    return
  end
  live = live + last - first + 1
  local number = new_numbers[owner]
  if not number then
    number = #new_owners + 1
    new_owners[number], new_numbers[owner] = owner, number
  end
  if new_ranges[size - 3] == first - 1 and new_ranges[size - 2] == count and new_ranges[size - 1] == number
      and new_ranges[size] == lock_end then
    new_ranges[size - 3] = last
    return
  end
  new_ranges[size + 1], new_ranges[size + 2], new_ranges[size + 3] = first, last, count
  new_ranges[size + 4], new_ranges[size + 5] = number, lock_end
  size = size + 5
end

local function write_ranges(to, begun_ms)
  redis.call('HSET', share, 'h:' .. group,
    string.format('ranges %d %d %d %d', new_ranges[1] or to, to, live, begun_ms))
  if new_ranges[1] then
    redis.call('HSET', share, 'r:' .. group, cmsgpack.pack(new_owners, new_ranges))
  else
    redis.call('HDEL', share, 'r:' .. group)
  end
end
