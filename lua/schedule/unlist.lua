#!lua flags=allow-oom
-- Takes the name of what does not exist off its list, unless it was listed again since.
-- KEYS     1 list
-- ARGV     1 name
--          2 its time in the list as the caller has read or written it
-- Returns  1, or 0 if the time is another one now
-- Errors   none
--
-- Who lists a name gives it another time, so what was created meanwhile stays listed. allow-oom: what frees memory must
-- work when there is none left.

local list, name, seen = KEYS[1], ARGV[1], tonumber(ARGV[2])
local score = redis.call('ZSCORE', list, name)
if not score or tonumber(score) ~= seen then
  return 0
end
return redis.call('ZREM', list, name)
