-- Packs what shared/log_fields has unpacked, in place: no function, which would cost every append its definition.
-- Leaves  packed_log, the field `log`
local packed_log = struct.pack(log_format, next_offset, start, first, lake_start, bytes, records, entries, largest, interval,
  last_epoch, moving)
