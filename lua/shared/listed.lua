-- Whether a group may be created: only one that stands in the list of groups is found by the keeper and by administrators.
-- A script that would create a group that was not listed answers UNLISTED with now_ms; the caller lists the group with
-- that as its time, and calls again with it. The keeper takes a name without a group off the list a minute after that
-- time (korvet/server/keeper/due.py): a call that comes later than this has to list the group again. So it is with
-- transactional ids.
-- Needs now_ms
local LISTED_MS = 10000

local function is_listed(at)
  return at > 0 and now_ms - at <= LISTED_MS
end
