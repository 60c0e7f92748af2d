#!lua flags=allow-oom
-- Gives up a pass of compaction: what it has written is removed.
-- KEYS     1 state
--          2 clean:0
--          3 clean:1
-- ARGV     1 topic id
--          2 token of the pass
-- Returns  1; 0 if another pass was begun meanwhile, or this one has ended
-- Errors   UNKNOWN_TOPIC_OR_PARTITION
--
-- allow-oom: what frees memory must work if none is left.

local state = KEYS[1]
local clean = {KEYS[2], KEYS[3]}
local topic_id, token = ARGV[1], ARGV[2]

local held = redis.call('HMGET', state, 'topic', 'clean_token', 'clean')
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. state .. ' does not belong to topic id ' .. topic_id)
end
if held[2] ~= token then
  return 0
end
redis.call('UNLINK', clean[held[3] == '0' and 2 or 1])
redis.call('HDEL', state, 'clean_token')
return 1
