-- Refuses a request after the end of its sender's lease: a worker that did not run, or bytes that lay somewhere, may bring
-- what nobody wants any more. Before anything else in the script.
-- Needs   one more ARGV, the last: when the lease ends (ms, Redis' clock), 0 for a sender that has none; it is taken off
-- Leaves  now_ms, Redis' clock
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local lease_end = tonumber(ARGV[#ARGV])
ARGV[#ARGV] = nil
if lease_end > 0 and now_ms > lease_end then
  return redis.error_reply('STALE_BROKER_EPOCH the lease of the sender ended ' .. now_ms - lease_end .. ' ms ago')
end
