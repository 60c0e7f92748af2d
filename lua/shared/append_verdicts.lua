-- What an append says of a batch, each with a value, and the kinds of batches. core/proto/src/append/answer.rs has the same numbers.
local APPENDED, DUPLICATE, VERIFY, INVALID_PRODUCER_EPOCH, OPEN_BY_EPOCH, OUT_OF_ORDER = 0, 1, 2, 3, 4, 5
local TRANSACTION_OPEN, TRANSACTION_ENDED, TRANSACTION_NOT_SENT = 6, 7, 8
local MALFORMED_PRODUCER, MALFORMED_OPEN, MALFORMED_ABORTED, USED_UP, MEMORY_FULL = 9, 10, 11, 12, 13
local TRANSACTION, COMMIT, ABORT = 1, 2, 3
