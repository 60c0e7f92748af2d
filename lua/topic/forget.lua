#!lua flags=allow-oom
-- Forgets what a group has committed of a topic that was deleted. One bounded step.
-- KEYS     committed offsets of the group
-- ARGV     topic id, cursor ("0" begins), most rows to look at
-- Returns  {next cursor ("0" when all rows were looked at), rows removed}
-- Errors   none
--
-- A row names the topic id that it speaks of, so one of a topic of the same name that was made since stays. A key of another
-- type holds no commits.
-- allow-oom: what gives memory back must work where there is none left.

local offsets, topic_id, cursor, count = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
-- No note of a consumer reads like this: in JSON its quotation marks stand behind backslashes.
local mark = '"topic_id":"' .. topic_id .. '"'

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
