#!lua flags=no-writes
-- Reads how much of a log is compacted, and how much could be, by which a pass of compaction is planned.
-- KEYS     state, index
-- ARGV     topic id
-- Returns  {Redis' clock in ms, the state's next, start, bytes, records, interval, start_bytes, clean_end, clean,
--          clean_history, clean_token, clean_bytes and open, offset and member of the newest row}; texts, empty if
--          there is none
-- Errors   UNKNOWN_TOPIC_OR_PARTITION

local state, index = KEYS[1], KEYS[2]
local topic_id = ARGV[1]

local held = redis.call('HMGET', state, 'topic', 'next', 'start', 'bytes', 'records', 'interval', 'start_bytes',
  'clean_end', 'clean', 'clean_history', 'clean_token', 'clean_bytes', 'open')
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. state .. ' does not belong to topic id ' .. topic_id)
end
local time = redis.call('TIME')
local answer = {string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))}
for at = 2, 13 do
  answer[at] = held[at] or ''
end
local newest = redis.call('ZREVRANGE', index, 0, 0, 'WITHSCORES')
answer[14] = newest[2] and string.format('%d', newest[2]) or ''
answer[15] = newest[1] or ''
return answer
