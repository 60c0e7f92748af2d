#!lua flags=allow-oom
-- Takes what a member of a share group says of records that it has acquired: all of it or nothing.
-- KEYS     1 stream
--          2 state
--          3 share
-- ARGV     1 topic id
--          2 group
--          3 offset sequence bits (0: dense ids)
--          4 member
--          5 channel of the partition
--          6 ms of a lock
--          7 most deliveries
--          8 most records in flight
--          9 "session" to release what the member has of the ranges, else ""
--          10 and on: for each range of offsets, in order: first offset; last offset; a type: 0 (gap), 1 (accept), 2 (release),
--            then 3 (reject), 4 (renew: its lock begins again)
-- Returns  1 if records are available again, else 0; it announces this, and the moment when few enough records are in flight
--          to deliver more
-- Errors   STALE_BROKER_EPOCH (shared/lease), UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (a malformed state or part),
--          INVALID_RECORD_STATE (the member does not have one of them, or its lock has ended; there is no part),
--          INVALID_REQUEST (one of them is past all that was acquired, and something is in flight)
--
-- What is released after its last delivery is done with. Offsets before the group's start are passed over, as in Kafka: those
-- of records that are done with, and that have left the log.
-- allow-oom: what is acknowledged is to be delivered no more, and frees memory.

-- @include shared/lease
-- @include shared/whole_number

local stream, state, share = KEYS[1], KEYS[2], KEYS[3]
local topic_id, group, bits, member, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local lock_ms, deliveries_max, in_flight_max = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local by_session, first_range = ARGV[9] == 'session', 10
local RELEASE, RENEW = '2', '4'

local is_replaced = false
local held = redis.call('HMGET', state, 'topic', 'log', 'epochs', 'clean_token', 'clean')
-- @include shared/log_fields
-- @include shared/share_begin
-- @include shared/share_ranges
-- @include shared/entry_ids
-- @include shared/share_redis

local acquired_end = math.huge -- the offset after the last one that was acquired
local is_in_flight -- () -> whether the group has records that are not done with
local function refuse(offset)
  local code = offset >= acquired_end and is_in_flight() and 'INVALID_REQUEST' or 'INVALID_RECORD_STATE'
  return redis.error_reply(string.format('%s %s of group %s does not have offset %d of %s', code, member, group, offset,
    stream))
end

if not ARGV[first_range] then
  return 0
end
local released, has_room, is_done = false, false, false
local floor = math.max(start or 0, log_start)
if not header then
  if by_session then
    return 0
  end
  return refuse(tonumber(ARGV[first_range]))
elseif kind == 'redis' then
  local undelivered, pending = read_group()
  if not undelivered then
    return by_session and 0 or refuse(tonumber(ARGV[first_range]))
  end
  acquired_end = undelivered
  function is_in_flight()
    local after = id_of(log_start)
    repeat
      local rows = redis.call('XPENDING', stream, group, after, '+', 1000)
      for _, row in ipairs(rows) do
        if row[3] < lock_ms or row[4] < deliveries_max then
          return true
        end
        after = '(' .. row[1]
      end
    until #rows < 1000
    return false
  end
  local acked, freed, renewed = {}, {}, {}
  local at, checked = first_range, tonumber(ARGV[first_range]) -- all before it is the member's, or is gone
  -- Passes over what the member does not have up to `to`, exclusive; returns the offset of a record that is there.
  local function pass(to)
    while ARGV[at] and checked < to do
      local last = tonumber(ARGV[at + 1])
      local stop = math.min(last + 1, to)
      if checked < stop and stop > floor then
        local entry = redis.call('XRANGE', stream, id_of(math.max(checked, floor)), id_of(stop - 1), 'COUNT', 1)[1]
        if entry or stop > undelivered then
          return entry and offset_of(entry[1]) or stop - 1
        end
      end
      checked = math.max(checked, stop)
      if checked <= last then
        return
      end
      at = at + 3
      checked = tonumber(ARGV[at] or checked)
    end
  end
  local from, to = id_of(checked), id_of(tonumber(ARGV[#ARGV - 1]))
  repeat
    local rows = redis.call('XPENDING', stream, group, from, to, 1000, member)
    for _, row in ipairs(rows) do
      local id, idle, delivered = row[1], row[3], row[4]
      local offset = offset_of(id)
      local answer
      if by_session then
        while offset and ARGV[at] and tonumber(ARGV[at + 1]) < offset do
          at = at + 3
        end
        answer = offset and ARGV[at] and tonumber(ARGV[at]) <= offset and RELEASE
      elseif offset then
        local missing = pass(offset)
        if missing then
          return refuse(missing)
        end
        if ARGV[at] and checked == offset then
          if idle >= lock_ms then
            return refuse(offset)
          end
          answer, checked = ARGV[at + 2], offset + 1
          if offset == tonumber(ARGV[at + 1]) then
            at = at + 3
            checked = tonumber(ARGV[at] or checked)
          end
        end
      end
      if answer == RENEW then
        renewed[#renewed + 1] = id
      elseif answer == RELEASE and delivered < deliveries_max then
        freed[#freed + 1] = id
      elseif answer then
        acked[#acked + 1] = id
      end
      from = '(' .. id
    end
  until #rows < 1000
  if not by_session then
    local missing = pass(9007199254740992)
    if missing then
      return refuse(missing)
    end
  end

  each_of(acked, function(...) redis.call('XACK', stream, group, ...) end)
  if renewed[1] and locked_ms > now_ms then
    begin_locks_again() -- the clock was set back
  end
  claim(member, renewed)
  claim('korvet.released', freed, 'TIME', 0)
  is_done = acked[1] or freed[1]
  released, has_room = #freed > 0, pending >= in_flight_max and pending - #acked < in_flight_max
  if by_session and #redis.call('XPENDING', stream, group, '-', '+', 1, member) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, member)
  end
  local first = first_pending(math.max(undelivered, log_start))
  redis.call('HSET', share, 'h:' .. group, header_of(first, lock_ms, renewed[1] and now_ms or locked_ms))
else
  local owners, ranges = read_ranges()
  acquired_end = next_offset
  function is_in_flight()
    for n = 1, #ranges, 5 do
      local _, last, count, _, ends = unpack(ranges, n, n + 4)
      if last >= log_start and (ends == 0 or ends > now_ms or count < deliveries_max) then
        return true
      end
    end
    return false
  end
  local at, changed = first_range, false
  local function put_as(answer, first, last, count)
    is_done = is_done or answer ~= RENEW
    if answer == RENEW then
      put(first, last, count, member, now_ms + lock_ms)
    elseif answer == RELEASE and count < deliveries_max then
      put(first, last, count, '', 0)
      released = released or last >= log_start
    end
  end
  for n = 1, #ranges, 5 do
    local first, last, count, owner, ends = unpack(ranges, n, n + 4)
    owner = owners[owner]
    if ends > 0 and locked_ms > now_ms then
      ends = ends - (locked_ms - now_ms) -- the clock was set back
    end
    local is_members = owner == member and ends > now_ms
    while by_session and owner == member and ARGV[at] and tonumber(ARGV[at]) <= last do
      local from, to = math.max(tonumber(ARGV[at]), first), math.min(tonumber(ARGV[at + 1]), last)
      if from <= to then
        put(first, from - 1, count, owner, ends)
        put_as(RELEASE, from, to, count)
        changed, first = true, to + 1
      end
      if tonumber(ARGV[at + 1]) > last then
        break
      end
      at = at + 3
    end
    while not by_session and first <= last and ARGV[at] and tonumber(ARGV[at]) <= last do
      local from, to = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
      if math.max(from, floor) < first and to >= floor then
        return refuse(math.max(from, floor))
      end
      from = math.max(from, first)
      if to >= from then
        if not is_members and math.min(to, last) >= floor then
          return refuse(math.max(from, floor))
        end
        if first < from then
          put(first, from - 1, count, owner, ends)
        end
        changed = true
        put_as(ARGV[at + 2], from, math.min(to, last), count)
        first = math.min(to, last) + 1
      end
      if to > last then
        -- The range goes on in what comes next.
        ARGV[at] = string.format('%d', last + 1)
        break
      end
      at = at + 3
    end
    if first <= last then
      put(first, last, count, owner, ends)
    end
  end
  while not by_session and ARGV[at] do
    if tonumber(ARGV[at + 1]) >= floor then
      return refuse(math.max(tonumber(ARGV[at]), floor))
    end
    at = at + 3
  end
  if changed then
    write_ranges(math.max(next_offset, log_start), now_ms)
    has_room = in_flight >= in_flight_max and live < in_flight_max
  end
end
if is_done then
  redis.call('HDEL', share, 'n:' .. group)
end
if released or has_room then
  redis.call('SPUBLISH', channel, string.format('%d', log_end))
end
return released and 1 or 0
