-- Replaces the row of a topic whose partitions are to be created, and lets the caller do that, unless the row has changed
-- since it was read or another process may still do it.
-- KEYS     1 registry
--          2 changes
-- ARGV     1 topic name
--          2 row as it was read
--          3 new row (JSON) without a claim
--          4 ms for which the caller may create the partitions
--          5 most members of the change feed
--          6 ms by which the clocks of a cluster's nodes may differ
--          7 lowest claim (0: any; for a caller that has the claim of the row)
-- Returns  the row as it was written, with its claim; 0, with nothing done, if the row has changed; 1, with nothing done, if
--          another process may create the partitions now
-- Errors   STALE_BROKER_EPOCH (shared/lease)
--
-- A claim is an epoch of the registry and a time. Until then (Redis' clock) one process creates partitions; what it has
-- sent and comes later is refused by partition/create. So nothing is under way when another process takes the claim over.
-- A later claim on a topic of that name is higher, also if it is another topic: partition/create keeps to that order.

-- @include shared/lease

local registry, changes = KEYS[1], KEYS[2]
local name, expected, row, claim_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local members_max, clocks_ms, lowest = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

if redis.call('HGET', registry, name) ~= expected then
  return 0
end
-- In the text of a string a quotation mark has a backslash before it: this is the field, if it is there.
local held_until = tonumber(string.match(expected, '"claim_until":(%d+)') or '0')
if lowest == 0 and held_until > 0 and now_ms <= held_until + clocks_ms then
  return 1
end
-- @include shared/change_feed

local epoch = record_change(changes, name, members_max)
local claim = math.max(tonumber(epoch), lowest)
local claimed = string.sub(row, 1, -2) .. string.format(',"claim":%d,"claim_until":%d}', claim, now_ms + claim_ms)
redis.call('HSET', registry, name, claimed)
return claimed
