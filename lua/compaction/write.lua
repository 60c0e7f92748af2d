-- Writes survivors of a pass of compaction behind those it has written before.
-- KEYS     state, the clean stream that the pass writes
-- ARGV     topic id, token of the pass; then for each entry its id, the number of its fields and values, and these
-- Returns  1; 0 where another pass was begun meanwhile, or this one given up: nothing is written
-- Errors   UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR (an entry does not follow the ones written before)

local state, stream = KEYS[1], KEYS[2]
local topic_id, token = ARGV[1], ARGV[2]
local first_entry = 3

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
return 1
