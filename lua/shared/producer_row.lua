-- The formats of a producer's row, a field of a partition's state. docs/redis-schema.md shows them byte by byte,
-- korvet/log/packed.py has them in Python.
-- A row is in row_format (epoch, next sequence, ms of its last batch or marker), or if the producer had a transaction here in
-- row_transaction_format (besides the number of the last one, and its first offset, -1: it has ended); then come up to five
-- batches, the newest first, each in batch_format (records, base offset). So the length says which it is: row_format and
-- batches have 12 bytes, a transaction 16. row_batch_format: row_format and one batch.
local row_format, row_transaction_format, row_batch_format, batch_format = '>i2I4I6', '>i2I4I6I8i8', '>i2I4I6I4I8', '>I4I8'
