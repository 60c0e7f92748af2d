-- Transactions that are prepared: it is decided how they end, and their markers are being written. After
-- shared/transaction_state.

local is_prepared = state == 'PrepareCommit' or state == 'PrepareAbort'

-- When (ms) the keeper has to complete one whose process has died meanwhile.
local COMPLETE_AFTER_MS = 5000

-- The reply about one, for a caller that is to write its markers and then complete it: {"PREPARED", when the keeper has to
-- look, the producer id and the epoch to go on with, the producer id and the epoch of the markers, number, 1 to commit or 0
-- to abort, and for each partition and group its field and value}.
local function prepared()
  local is_used_up = next_producer_id ~= '-1'
  local reply = {
    'PREPARED', now_ms + COMPLETE_AFTER_MS, is_used_up and next_producer_id or producer_id, is_used_up and 0 or epoch,
    producer_id, epoch, number, state == 'PrepareCommit' and 1 or 0,
  }
  local flat = redis.call('HGETALL', transaction)
  for at = 1, #flat, 2 do
    if string.match(flat[at], '^[pg]:') then
      reply[#reply + 1] = flat[at]
      reply[#reply + 1] = flat[at + 1]
    end
  end
  return reply
end
