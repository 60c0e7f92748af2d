#!lua flags=allow-oom
-- Marks a topic as deleted, so that nobody finds it any more, and fences the logs of some of its partitions.
-- KEYS     registry, changes; then for each partition to be fenced: state
-- ARGV     topic name, topic id, row as it was read, the same row marked, channel, most members of the change feed
-- Returns  1; 0 where the row is another one by now, and nothing is done
-- Errors   none
--
-- Where the row is marked already, as by a step before, partitions are fenced only. Fenced means that the state has no
-- topic id that anybody asks for: no append, no commit and no step of the keeper takes place, and no read succeeds.
-- allow-oom: what gives memory back must work where there is none left.

local registry, changes = KEYS[1], KEYS[2]
local name, topic_id, expected, marked = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local channel, members_max = ARGV[5], tonumber(ARGV[6])
local first_state = 3

local held = redis.call('HGET', registry, name)
if held ~= expected and held ~= marked then
  return 0
end
-- @include shared/change_feed

if held ~= marked then
  local epoch = record_change(changes, name, members_max)
  redis.call('HSET', registry, name, marked)
  redis.call('PUBLISH', channel, epoch)
end
for at = first_state, #KEYS do
  -- One that was removed before stays away.
  if redis.call('EXISTS', KEYS[at]) == 1 then
    local fenced = redis.pcall('HSET', KEYS[at], 'topic', 'deleted ' .. topic_id)
    if type(fenced) == 'table' and fenced.err then
      -- Of another type: nobody's log. What it had can be removed as that of others.
      redis.call('UNLINK', KEYS[at])
      redis.call('HSET', KEYS[at], 'topic', 'deleted ' .. topic_id)
    end
  end
end
return 1
