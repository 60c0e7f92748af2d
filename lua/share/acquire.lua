#!lua flags=allow-oom
-- Gives a member of a share group what is available of the records that were read for it, or begins the group's part of a
-- partition.
-- KEYS     1 stream
--          2 state
--          3 share
-- ARGV     1 topic id
--          2 group
--          3 offset sequence bits (0: dense ids)
--          4 member
--          5 offset at which the part begins if there is none ("": at no place)
--          6 "redis" if the part is to be a Redis group, "ranges" if not ("": as it is)
--          7 most records
--          8 "cut" if a run of offsets may be cut (else "whole")
--          9 ms of a lock
--          10 most deliveries
--          11 most records in flight
--          12 offset read from
--          13 end of the records read
--          14 leader epoch of the records read
--          15 deliveries after which a record is throttled
--          16 "more" if the fetch has acquired others before (else "")
--          17 number of runs that were read and may be delivered
--          18 and on: for each run: first and last offset; then the same for runs that were read and are not to be
--            delivered
-- Returns  {lowest offset that may be acquired ("": none), ms until the first lock ends ("": none, or something was
--          acquired); then for each range of acquired records first and last offset, delivery count}; nil if there is no
--          part; "CONVERT", with nothing done, if it is a Redis group and is not to be one (share/convert)
-- Errors   STALE_BROKER_EPOCH (shared/lease), UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state or part)
--
-- A lock that has ended is found here: its records are available, or done with after their last delivery. Where the
-- clock was set back the locks that began last begin again, and the others end as much earlier than these as before. What was read in
-- another leader epoch than the log's last, or past its end, Redis may have lost since: nothing of it is acquired.
-- Nothing is acquired while a record is available before the offset read from, unless the fetch has acquired others: the
-- caller reads again from that one, for records are delivered in their order (Kafka).
-- A throttled record is acquired after no others of the fetch, with ever fewer of its run (of what is available, in a Redis
-- group) and before its last delivery alone: if it fails each time, it archives none of its neighbours (Kafka).
-- allow-oom: a group that acquires nothing works nothing off, and what it has in flight is limited.

-- @include shared/lease
-- @include shared/whole_number

local stream, state, share = KEYS[1], KEYS[2], KEYS[3]
local topic_id, group, bits, member = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local begin, wanted_kind, records_max, may_cut = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7]), ARGV[8] == 'cut'
local lock_ms, deliveries_max, in_flight_max = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local read_start, read_end, read_epoch = tonumber(ARGV[12]), tonumber(ARGV[13]), ARGV[14]
local throttled_from, goes_on = tonumber(ARGV[15]), ARGV[16] == 'more'
local first_run, after_runs = 18, 18 + 2 * tonumber(ARGV[17])

local is_replaced = false
local held = redis.call('HMGET', state, 'topic', 'log', 'epochs', 'clean_token', 'clean')
-- @include shared/log_fields
-- @include shared/share_begin
-- @include shared/share_ranges
-- @include shared/entry_ids
-- @include shared/share_redis

if kind == 'redis' and wanted_kind == 'ranges' then
  return 'CONVERT'
end
if not header and not begin then
  return false
end

-- Acquires nothing of what was read.
local function read_nothing()
  read_start, read_end, after_runs = 0, 0, first_run
end
if read_epoch ~= epoch or read_end > log_end then
  read_nothing()
end

local answer = {'', ''}
local taken, run = 0, first_run
local is_done = false -- a record is delivered again
local function give(first, last, count)
  local size = #answer
  is_done = is_done or count > 1
  taken = taken + last - first + 1
  if size > 2 and answer[size - 1] == first - 1 and answer[size] == count then
    answer[size - 1] = last
  else
    answer[size + 1], answer[size + 2], answer[size + 3] = first, last, count
  end
end
local function answered(read_next, first_lock_end)
  answer[1] = read_next and string.format('%d', read_next) or ''
  answer[2] = first_lock_end and taken == 0 and string.format('%d', math.max(first_lock_end - now_ms, 0)) or ''
  for at = 3, #answer do
    answer[at] = string.format('%d', answer[at])
  end
  if is_done then
    redis.call('HDEL', share, 'n:' .. group)
  end
  return answer
end
-- Returns how many of `size` records are acquired with the first one, which was delivered `count` times, after others.
local function throttled(count, size, others)
  if count < throttled_from then
    return size
  elseif goes_on or others > 0 then
    return 0
  end
  return count == deliveries_max - 1 and 1 or math.max(1, math.floor(size / 2 ^ (count - throttled_from + 1)))
end
-- Calls with each run, or part of one, from `from` to `to`, both included, until it returns true, which is returned; the
-- third argument is the size of the run.
local function each_run(from, to, call)
  while run < after_runs and tonumber(ARGV[run + 1]) < from do
    run = run + 2
  end
  local at = run -- a run may go on in the next range
  while at < after_runs and tonumber(ARGV[at]) <= to do
    local first, last = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
    if call(math.max(first, from), math.min(last, to), last - first + 1) then
      return true
    end
    at = at + 2
  end
end

if not header then
  redis.call('HSET', share, 'n:' .. group, '')
  kind = begin_kind(wanted_kind)
  start, next_offset, in_flight, locked_ms = math.max(begin, log_start), math.max(begin, log_start), 0, 0
end

if kind == 'redis' then
  local undelivered, pending, entries_read, lag = read_group()
  if not undelivered then
    -- Nobody has made it yet, or somebody has destroyed it.
    undelivered, pending = start, 0
    create_group(start)
  end
  if locked_ms > now_ms then
    begin_locks_again() -- the clock was set back
    locked_ms = now_ms
  end
  local is_behind = undelivered < log_start -- it has not read what was trimmed: nobody knows how many that were
  undelivered = math.max(undelivered, log_start)

  local function ack(...)
    pending = pending - redis.call('XACK', stream, group, ...)
  end
  -- Redis looks at every pending entry for those that are idle. Where plain workers have many, only the next ones count.
  local has_many = pending > 5000
  local function available(from, to, count)
    if pending == 0 then
      return {}
    elseif not has_many then
      return redis.call('XPENDING', stream, group, 'IDLE', lock_ms, from, to, count)
    end
    local found = {}
    for _, row in ipairs(redis.call('XPENDING', stream, group, from, to, 1000)) do
      if row[3] >= lock_ms and #found < count then
        found[#found + 1] = row
      end
    end
    return found
  end
  local function is_in()
    return true
  end
  if not goes_on and read_start > log_start and available(id_of(log_start), id_of(read_start - 1), 1)[1] then
    read_nothing()
  end
  local gone, former = {}, {}
  -- What left the log is in flight no more, whichever member has it.
  for _, row in ipairs(log_start > 0 and redis.call('XPENDING', stream, group, '-', id_of(log_start - 1), 1000) or {}) do
    gone[#gone + 1], former[row[2]] = row[1], true
  end
  each_of(gone, ack)

  -- What is to be delivered again, by how often it was.
  if read_start < read_end and records_max > 0 then
    local rows = available(id_of(read_start), id_of(read_end - 1), math.min(records_max, 1000))
    local offsets, by_count, claimed = {}, {}, {}
    local wanted, again_max = 0, math.huge
    gone = {}
    for n, row in ipairs(rows) do
      local offset, delivered = offset_of(row[1]), row[4]
      former[row[2]] = true
      if offset and delivered < deliveries_max and each_run(offset, offset, is_in) then
        if delivered >= throttled_from and again_max == math.huge then
          again_max = wanted + throttled(delivered, #rows, wanted)
        end
        if wanted < again_max then
          wanted, offsets[n], by_count[delivered] = wanted + 1, offset, by_count[delivered] or {}
          table.insert(by_count[delivered], row[1])
        end
      else
        gone[#gone + 1] = row[1] -- delivered often enough, or not in the log under this id
      end
    end
    each_of(gone, ack)
    for delivered, ids in pairs(by_count) do
      pending = pending - #ids
      for _, id in ipairs(claim(member, ids, 'RETRYCOUNT', delivered + 1)) do
        pending, claimed[id] = pending + 1, delivered + 1
      end
    end
    for n, row in ipairs(rows) do
      if claimed[row[1]] then
        give(offsets[n], offsets[n], claimed[row[1]])
      end
    end
    if again_max < math.huge then
      records_max = 0
    end
  end

  -- What nobody has had yet.
  local room = math.min(records_max - taken, in_flight_max - pending)
  if read_start <= undelivered and undelivered < read_end and records_max > 0 then
    local again, to, ids, offsets = {}, read_end, {}, {}
    if pending > 0 then
      -- Somebody may have set the group back: what is pending stays so.
      for _, row in ipairs(redis.call('XPENDING', stream, group, id_of(undelivered), id_of(read_end - 1), 10000)) do
        again[row[1]] = true
      end
    end
    run = first_run
    each_run(undelivered, read_end - 1, function(first, last)
      for offset = first, last do
        local id = id_of(offset)
        if not again[id] then
          if #ids >= room then
            to = offset
            return true
          end
          ids[#ids + 1], offsets[#offsets + 1] = id, offset
        end
      end
    end)
    if to > undelivered then
      local at = 0
      for _, id in ipairs(claim(member, ids, 'FORCE', 'RETRYCOUNT', 1)) do
        repeat
          at = at + 1
        until ids[at] == id
        give(offsets[at], offsets[at], 1)
        pending = pending + 1
      end
      local command = {'XGROUP', 'SETID', stream, group, id_of(to - 1)}
      if lag and not entries_read and not is_behind then
        local info = redis.call('XINFO', 'STREAM', stream)
        for at = 1, #info, 2 do
          entries_read = info[at] == 'entries-added' and info[at + 1] - lag or entries_read
        end
      end
      if entries_read and not is_behind then
        for at = first_run, #ARGV, 2 do
          local first, last = math.max(tonumber(ARGV[at]), undelivered), math.min(tonumber(ARGV[at + 1]), to - 1)
          entries_read = entries_read + math.max(last - first + 1, 0)
        end
        command[6], command[7] = 'ENTRIESREAD', entries_read
      end
      redis.call(unpack(command))
      undelivered = to
    end
  end

  local lowest
  -- Burst entries that somebody has read before they were moved (log/renumber) must not hide those with an offset.
  for count = 10, 1000, 990 do
    gone = {}
    for _, row in ipairs(available('-', '+', count)) do
      local offset = offset_of(row[1])
      if offset then
        lowest = offset
        break
      end
      gone[#gone + 1], former[row[2]] = row[1], true
    end
    each_of(gone, ack)
    if #gone < count then
      break
    end
  end
  former[member], former['korvet.released'] = nil, nil
  for owner in pairs(former) do
    -- A member that is gone does not come back, and who still reads under that name makes its consumer again.
    if #redis.call('XPENDING', stream, group, '-', '+', 1, owner) == 0 then
      redis.call('XGROUP', 'DELCONSUMER', stream, group, owner)
    end
  end

  local first = pending > 0 and first_pending(undelivered) or undelivered
  local now_first = header_of(first, lock_ms, taken > 0 and now_ms or locked_ms)
  if now_first ~= header then
    redis.call('HSET', share, 'h:' .. group, now_first)
  end
  local read_next = in_flight_max > pending and undelivered or nil
  read_next = lowest and math.min(lowest, read_next or lowest) or read_next
  if taken > 0 or pending == 0 then
    return answered(read_next)
  end
  -- No command returns the longest idle time of the locked entries. Mostly it is the first entry's; else it is
  -- sought between what is known and above, by halves in every other step.
  local known, above = 0, lock_ms
  for step = 0, has_many and 0 or 14 do
    local probe = step % 2 == 1 and known + 1 or step > 0 and math.ceil((known + above) / 2) or 0
    if probe >= above then
      break
    end
    local row = redis.call('XPENDING', stream, group, 'IDLE', probe, '-', '+', 1)[1]
    if row then
      known = math.min(row[3], lock_ms)
    else
      above = probe
    end
  end
  if known >= lock_ms then
    -- What is available cannot be read, as in an open transaction, and hides which lock ends first.
    known = lock_ms - math.min(lock_ms, 1000)
  end
  return answered(read_next, now_ms + lock_ms - known)
end

local owners, ranges = read_ranges()
for n = 1, goes_on and 0 or #ranges, 5 do
  local first, last, count, owner, ends = unpack(ranges, n, n + 4)
  if first < read_start and last >= log_start and (owner == 0 or ends <= now_ms and count < deliveries_max) then
    read_nothing()
    break
  end
end
local lock_end, first_lock_end, lowest, changed = now_ms + lock_ms, nil, nil, not header
local function keep(first, last, count, owner, ends)
  put(first, last, count, owner, ends)
  if owner ~= '' then
    first_lock_end = math.min(first_lock_end or ends, ends)
  elseif last >= log_start then
    lowest = lowest or math.max(first, log_start)
  end
end
-- Gives a run as far as it goes, and returns the offset after that.
local function acquire(first, last, count, room)
  local size = math.min(last - first + 1, may_cut and math.min(records_max - taken, room) or in_flight_max)
  keep(first, first + size - 1, count, member, lock_end)
  give(first, first + size - 1, count)
  return first + size
end

local again_count
-- Gives a run that is delivered again.
local function acquire_again(first, last, run_size)
  local stop = math.min(last, first + throttled(again_count, run_size, taken) - 1)
  local after = taken < records_max and first <= stop and acquire(first, stop, again_count + 1, records_max) or first
  if after <= last then
    keep(after, last, again_count, '', 0)
  end
  if again_count >= throttled_from then
    records_max = taken
  end
end

for at = 1, #ranges, 5 do
  local first, last, count, owner, ends = unpack(ranges, at, at + 4)
  owner = owners[owner]
  changed = changed or first < log_start
  first = math.max(first, log_start)
  if ends > 0 and locked_ms > now_ms then
    ends, changed = ends - (locked_ms - now_ms), true -- the clock was set back
  end
  if owner ~= '' and ends <= now_ms then
    owner, ends, changed = '', 0, true
  end
  local from, to = math.max(first, read_start), math.min(last, read_end - 1)
  if owner == '' and count >= deliveries_max then
    changed = true
  elseif owner ~= '' or from > to or taken >= records_max then
    keep(first, last, count, owner, ends)
  else
    changed = true
    if first < from then
      keep(first, from - 1, count, '', 0)
    end
    again_count = count
    each_run(from, to, acquire_again) -- what is in no run has left the log
    if to < last then
      keep(to + 1, last, count, '', 0)
    end
  end
end

local undelivered = math.max(next_offset, log_start)
if read_start <= undelivered and undelivered < read_end and records_max > 0 then
  run = first_run
  local stopped = each_run(undelivered, read_end - 1, function(first, last)
    local room = in_flight_max - live
    if taken >= records_max or room <= 0 then
      undelivered = first
      return true
    end
    undelivered = acquire(first, last, 1, room)
    return undelivered <= last
  end)
  if not stopped then
    undelivered = read_end
  end
end
if changed or undelivered ~= next_offset then
  write_ranges(undelivered, taken > 0 and now_ms or math.min(locked_ms, now_ms))
end
return answered(lowest or live < in_flight_max and undelivered or nil, first_lock_end)
