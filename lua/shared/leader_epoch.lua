-- Compares the leader epoch of a worker with the partition's, in place (KIP-101, KIP-320).
-- Needs   state, leader_epoch (a number), what shared/log_fields leaves
-- Leaves  new_epochs, which the field `epochs` must become with the first record of this epoch; nil if it stays as it is
-- The field is "<epoch>@<its first offset> ...", newest first. A worker of an earlier epoch has not noticed yet that
-- Redis may have lost records since: nothing is written for it.
local new_epochs, epochs_max = nil, 100
if last_epoch ~= leader_epoch then
  if leader_epoch < last_epoch then
    return redis.error_reply(string.format(
      'NOT_LEADER_OR_FOLLOWER %s has leader epoch %d, not %d', state, last_epoch, leader_epoch))
  end
  local epochs = redis.call('HGET', state, 'epochs') or ''
  if last_epoch >= 0 and tonumber(string.match(epochs, '^(%d+)@%d') or -1) ~= last_epoch then
    return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ': the field epochs is malformed')
  end
  local kept = {string.format('%d@%d', leader_epoch, next_offset)}
  local log_start, epoch_end = lake_start >= 0 and math.min(start, lake_start) or start, next_offset
  for entry, from in string.gmatch(epochs, '(%d+@(%d+))') do
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
