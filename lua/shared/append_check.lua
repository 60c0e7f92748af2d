-- The second part of an append, in place: what becomes of each batch, by idempotence (KIP-98, KIP-360) and by the
-- transactions of its producer (KIP-98, KIP-890). Writes nothing.
-- Needs   stream, producers, first_batch (where the batches begin in ARGV), next_offset (where the first of them would lie),
--         log_end (where the log ends), take_in (a function, or nil: called before the first batch is placed, may move both or
--         return false), now_ms, offsets_end
-- Leaves  answer (that of the script, with the result of each batch in it), placed (where in ARGV those stand that are to be
--         written), bases (their base offsets), places (their results in the answer), rows (the new rows of their producers),
--         transactions (nil, or producer id -> where the log ended when it opened the transaction that it has then, false: it
--         has none),
--         aborts (what the zset of aborted transactions gets: offset, member, offset, member, ...)
-- A producer's row is "<epoch> <ms of its last batch> [#<number>[@<first>]] <first>-<last sequence>@<base offset> ...": the
-- number of its last transaction here, with its first offset while it is open, and at most five batches; none after the end
-- of a transaction that began a new epoch.
-- A transaction has a number, so that what comes late is known by it: nothing opens a transaction that has ended.
local sequences = 2147483648 -- KIP-98: sequences wrap from 2^31 - 1 to 0
local batches_kept = 5 -- KIP-98: a producer has at most five batches in flight
local answer, placed, bases, places, rows = {'APPENDED', false, now_ms, 0}, {}, {}, {}, {}
local transactions, aborts
local check_at, check_offset = first_batch, next_offset
while ARGV[check_at] do
  local producer_id, count, outcome, base = ARGV[check_at], tonumber(ARGV[check_at + 4]), nil, '0'
  local transaction = ARGV[check_at + 7]
  local epoch, batches, kind, number, last_number, first_open
  if producer_id ~= '-1' then
    epoch, batches = tonumber(ARGV[check_at + 1]), {}
    local base_sequence, last_sequence = tonumber(ARGV[check_at + 2]), tonumber(ARGV[check_at + 3])
    local row = rows[producer_id] or redis.pcall('HGET', producers, producer_id)
    local row_epoch = type(row) == 'string' and tonumber(string.match(row, '^(%d+) %d+ %d'))
    if not row_epoch and type(row) == 'string' then
      row_epoch, last_number, first_open = string.match(row, '^(%d+) %d+ #(%d+)@?(%d*)')
      row_epoch, last_number, first_open = tonumber(row_epoch), tonumber(last_number), tonumber(first_open)
    end
    if transaction ~= '0' then
      kind, number = string.sub(transaction, 1, 1), tonumber(string.sub(transaction, 2))
    end
    if type(row) == 'table' then
      outcome = row
    elseif row and not row_epoch then
      outcome = redis.error_reply('KAFKA_STORAGE_ERROR ' .. producers .. ': producer ' .. producer_id .. ' is malformed')
    elseif row and epoch < row_epoch then
      outcome = redis.error_reply(string.format(
        'INVALID_PRODUCER_EPOCH producer %s has epoch %d, not %d', producer_id, row_epoch, epoch))
    else
      local newest
      if row and epoch == row_epoch then
        for from, to, at in string.gmatch(row, '(%d+)%-(%d+)@(%d+)') do
          newest = tonumber(to)
          if tonumber(from) == base_sequence and newest == last_sequence then
            outcome, base = 'DUPLICATE', at
            break
          end
          batches[#batches + 1] = from .. '-' .. to .. '@' .. at
        end
      end
      if kind and not outcome then
        if kind ~= 't' then
          if number == -1 and first_open and epoch == row_epoch then
            outcome = redis.error_reply(string.format(
              'INVALID_PRODUCER_EPOCH producer %s has its transaction open by epoch %d itself', producer_id, epoch))
          end
          if number <= 0 then
            number = first_open and last_number or 0 -- whichever is open
          end
          if number == 0 or last_number and (number < last_number or number == last_number and not first_open) then
            outcome = 'DUPLICATE'
          end
        elseif number == 0 then
          if not first_open or epoch > row_epoch then
            outcome = 'VERIFY'
          end
        elseif last_number and (number < last_number or (number == last_number) ~= (first_open ~= nil)) then
          outcome = redis.error_reply(string.format(
            'INVALID_TXN_STATE producer %s is at transaction %d here, %s', producer_id, last_number,
            first_open and 'which is open' or 'which has ended'))
        end
        if not outcome and not transactions and (kind ~= 't' or not first_open) then
          for key = 5, 6 do
            local size = redis.pcall('ZCARD', KEYS[key])
            if type(size) == 'table' then
              outcome = redis.error_reply('KAFKA_STORAGE_ERROR ' .. KEYS[key] .. ' is not usable: ' .. size.err)
            end
          end
          transactions, aborts = not outcome and {} or nil, {}
        end
      end
      if row and not outcome and (not kind or kind == 't') then
        if epoch > row_epoch then
          if base_sequence ~= 0 then
            outcome = redis.error_reply(string.format(
              'OUT_OF_ORDER_SEQUENCE_NUMBER producer %s begins epoch %d with sequence %d', producer_id, epoch,
              base_sequence))
          end
        elseif base_sequence ~= ((newest or -1) + 1) % sequences then
          -- As in Kafka, also what was written so long ago that its offset is forgotten.
          outcome = redis.error_reply(string.format(
            'OUT_OF_ORDER_SEQUENCE_NUMBER producer %s sent %d, the last was %d', producer_id, base_sequence, newest or -1))
        end
      end
      if not outcome and not kind and first_open then
        outcome = redis.error_reply('INVALID_TXN_STATE producer ' .. producer_id .. ' has a transaction open here')
      end
    end
  end
  if not outcome and take_in and not placed[1] then
    if not take_in() then
      return {'RENUMBER'}
    end
    check_offset = next_offset
  end
  if not outcome and count > offsets_end - check_offset then -- their sum may be no exact number
    outcome = redis.error_reply('KAFKA_STORAGE_ERROR the offsets of ' .. stream .. ' are used up')
  end
  if not outcome then
    outcome, base = 'APPENDED', string.format('%d', check_offset)
    if batches then
      if not kind or kind == 't' then
        if #batches == batches_kept then
          table.remove(batches, 1)
        end
        batches[#batches + 1] = ARGV[check_at + 2] .. '-' .. ARGV[check_at + 3] .. '@' .. base
      end
      if kind == 't' then
        if not first_open then
          last_number, first_open = number, check_offset
          transactions[producer_id] = placed[1] and check_offset or log_end
        end
      elseif kind then
        if first_open and kind == 'a' then
          aborts[#aborts + 1], aborts[#aborts + 2] = base, string.format('%s:%d', producer_id, first_open)
        end
        if first_open then
          transactions[producer_id] = false
        end
        last_number, first_open = number, nil
      end
      if last_number then
        local text = string.format(first_open and '#%d@%d' or '#%d', last_number, first_open)
        table.insert(batches, 1, text)
      end
      rows[producer_id] = string.format('%d %d %s', epoch, now_ms, table.concat(batches, ' '))
    end
    local at = #placed + 1
    placed[at], bases[at], places[at] = check_at, check_offset, #answer + 1
    check_offset = check_offset + count
  end
  local size = #answer
  answer[size + 1], answer[size + 2], answer[size + 3] = outcome, base, '0'
  check_at = check_at + 9 + tonumber(ARGV[check_at + 8])
end
