-- Writes survivors of a pass of compaction after those it has written before.
-- KEYS     1 state
--          2 the segment that the pass writes
-- ARGV     1 topic id
--          2 token of the pass
--          3 its token from now on
--          4 and on: for each entry its id, the number of its fields and values, and these
-- Returns  1; 0 if another pass was begun meanwhile, this one given up, or a write of it lost: nothing is written
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (an entry does not follow the ones written before)
--
-- The token changes with every write, in the same step. So a pass ends if Redis has lost one that it had confirmed,
-- as a replica may have that was promoted, or a server without power: what came next would follow a gap, and with the
-- switch the records that were in it would be gone for good.

local state, stream = KEYS[1], KEYS[2]
local topic_id, token, next_token = ARGV[1], ARGV[2], ARGV[3]
local first_entry = 4

local held = redis.call('HMGET', state, 'topic', 'clean_token')
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. state .. ' does not belong to topic id ' .. topic_id)
end
if held[2] ~= token then
  return 0
end
local at = first_entry
while at < #ARGV do
  local size = tonumber(ARGV[at + 1])
  local reply = redis.pcall('XADD', stream, ARGV[at], unpack(ARGV, at + 2, at + 1 + size))
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, '^ERR The ID ') then
      return redis.error_reply('KAFKA_STORAGE_ERROR ' .. stream .. ': entry ' .. ARGV[at] .. ' is out of order')
    end
    return reply
  end
  at = at + 2 + size
end
redis.call('HSET', state, 'clean_token', next_token)
return 1
