-- The distance of two rows of the sparse index: a row is written by what makes the records or the bytes that ever came
-- cross a multiple of these. Whether a row is missing follows from the newest one and the state alone.
-- Needs what shared/log_fields leaves. Leaves also what records and bytes were at the beginning.
local records_per_row, bytes_per_row, records_before, bytes_before = 2048, 524288, records, bytes
