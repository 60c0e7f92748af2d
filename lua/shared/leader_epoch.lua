-- Compares the leader epoch of a worker with the partition's, in place (KIP-101, KIP-320).
-- Needs   state, leader_epoch (text), epochs (the state's field, false without one), next_offset (the log's end), start,
--         lake_start (the log's start in Redis, and in the lake or nil)
-- Leaves  new_epochs, which the field must become with the first record of this epoch; nil if it stays as it is
-- The field is "<epoch>@<its first offset> ...", newest first. A worker of an earlier epoch has not noticed yet that
-- Redis may have lost records since: nothing is written for it.
local epochs_max = 100
local new_epochs
local last_epoch = epochs and string.match(epochs, '^(%d+)@%d+')
if last_epoch ~= leader_epoch then
  if epochs and (not last_epoch or #last_epoch > 10) then
    return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ' is malformed')
  end
  if last_epoch and tonumber(leader_epoch) < tonumber(last_epoch) then
    return redis.error_reply(string.format(
      'NOT_LEADER_OR_FOLLOWER %s has leader epoch %s, not %s', state, last_epoch, leader_epoch))
  end
  local kept = {string.format('%s@%d', leader_epoch, next_offset)}
  local log_start, epoch_end = math.min(start, lake_start or start), next_offset
  for entry, from in string.gmatch(epochs or '', '(%d+@(%d+))') do
    if epoch_end <= log_start or #kept == epochs_max then
      break
    end
    if tonumber(from) < epoch_end then -- else no record has come in that epoch
      kept[#kept + 1] = entry
      epoch_end = tonumber(from)
    end
  end
  new_epochs = table.concat(kept, ' ')
end
