-- The first part of an append, in place: what its batches have in common, and what one HMGET reads.
-- Leaves  the locals below. `rows`: producer id -> its new row; `transactions` (nil: no batch begins or ends one): producer id ->
--         where the log ended when it opened the one that it has now, false: none; `aborts`: of each transaction that is
--         aborted the marker's offset, producer id and first offset; `moved`: how many external entries
local argv, call, pack, unp = ARGV, redis.call, struct.pack, struct.unpack
local stream, state, index, topic_id, heads = KEYS[1], KEYS[2], KEYS[3], argv[1], argv[3]
local leader_epoch, sequences = tonumber(argv[2]), 2147483648 -- KIP-98: sequences wrap from 2^31 - 1 to 0
local sent_ms, bits, head_at = unp('>I6B', heads)
local batches = (#heads - 7) / 36
local held = call('HMGET', state, 'topic', 'log', unpack(argv, 4, 3 + batches))
local arg, written, moved, row_bytes, rows, answer = 4 + batches, false, 0, 0, {}, ''
local transactions, aborts, end_text, last_code, last_value
