#!lua flags=allow-oom
-- Deletes the offsets that a group has committed for deleted topics. One bounded step.
-- KEYS     1 committed offsets of the group
--          2 pending: those that transactions are to commit
-- ARGV     1 cursor ("0" begins)
--          2 most rows to read
--          3 and on: topic ids
-- Returns  {next cursor ("0" when all rows were read), rows deleted}
-- Errors   none
--
-- A row has the id of its topic, so one of a topic of the same name that was created since stays. A key of another type
-- holds no commits. What is pending goes with the first step.
-- allow-oom: what frees memory must work when there is none left.

local offsets, pending, cursor, count = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local deleted = {}
for at = 3, #ARGV do
  deleted[ARGV[at]] = true
end

local function is_deleted(row)
  -- No metadata of a commit contains this text: JSON writes a backslash before its quotation marks.
  local topic_id = string.match(row, '"topic_id":"([^"]*)"')
  return topic_id ~= nil and deleted[topic_id]
end

-- @include shared/pending_offsets

if cursor == '0' and redis.call('TYPE', pending).ok == 'hash' then
  drop_pending(function(_, row) return is_deleted(row) end)
end
local scanned = redis.pcall('HSCAN', offsets, cursor, 'COUNT', count)
if scanned.err then
  return {'0', 0}
end
local rows, removed = scanned[2], 0
for at = 1, #rows, 2 do
  if is_deleted(rows[at + 1]) then
    removed = removed + redis.call('HDEL', offsets, rows[at])
  end
end
return {scanned[1], removed}
