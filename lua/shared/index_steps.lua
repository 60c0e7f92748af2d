-- The distance of two rows of the sparse index: a row is written by what makes the records or the bytes that ever came
-- cross a multiple of these. Whether a row is missing follows from the newest one and the state alone.
local records_per_row, bytes_per_row = 2048, 524288
