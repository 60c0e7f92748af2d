#!lua flags=allow-oom
-- Deletes the offsets that a group has committed for a deleted topic. One bounded step.
-- KEYS     committed offsets of the group, pending: those that transactions are to commit
-- ARGV     topic id, cursor ("0" begins), most rows to read
-- Returns  {next cursor ("0" when all rows were read), rows deleted}
-- Errors   none
--
-- A row has the id of its topic, so one of a topic of the same name that was created since stays. A key of another type
-- holds no commits. What is pending goes with the first step.
-- allow-oom: what frees memory must work when there is none left.

local offsets, pending, topic_id, cursor, count = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
-- No metadata of a commit contains this text: JSON writes a backslash before its quotation marks.
local mark = '"topic_id":"' .. topic_id .. '"'

-- @include shared/pending_offsets

if cursor == '0' and redis.call('TYPE', pending).ok == 'hash' then
  drop_pending(function(_, row) return string.find(row, mark, 1, true) end)
end
local scanned = redis.pcall('HSCAN', offsets, cursor, 'COUNT', count)
if scanned.err then
  return {'0', 0}
end
local rows, removed = scanned[2], 0
for at = 1, #rows, 2 do
  if string.find(rows[at + 1], mark, 1, true) then
    removed = removed + redis.call('HDEL', offsets, rows[at])
  end
end
return {scanned[1], removed}
