-- The field `log` of a partition's state, unpacked in place. docs/redis-schema.md shows it byte by byte, korvet/log/packed.py has
-- it in Python.
-- Needs   state, topic_id, held (an answer to HMGET that begins with the fields `topic` and `log`)
-- Leaves  exact_max (2^53: the end of exact numbers in Lua); next_offset (the log's end), start, first (the first record's
--         offset; -1: none), lake_start (where the lake begins; -1: nothing is archived), bytes and records that ever came,
--         entries (format batch: how many the stream has by Korvet's count), largest (timestamp; -1: none), interval (the
--         largest since the last row of the index), last_epoch (the leader epoch of the last record; -1: none), moving (1:
--         entries are in the stream `moving`, and the log is closed; 0), which shared/log_packed packs again
local exact_max, log_format, log_bytes = 9007199254740992, '>I8I8i8i8I8I8I8i8i8i4B', 77
if held[1] ~= topic_id then
  return redis.error_reply('UNKNOWN_TOPIC_OR_PARTITION ' .. state .. ' does not belong to topic id ' .. topic_id)
end
if not held[2] or #held[2] ~= log_bytes then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ': the field log is malformed')
end
local next_offset, start, first, lake_start, bytes, records, entries, largest, interval, last_epoch, moving =
  struct.unpack(log_format, held[2])
if next_offset > exact_max or start > next_offset or first > next_offset or lake_start > next_offset or bytes > exact_max
    or records > exact_max or entries > exact_max or largest > exact_max or interval > largest or moving > 1 then
  return redis.error_reply('KAFKA_STORAGE_ERROR ' .. state .. ': the field log is malformed')
end
