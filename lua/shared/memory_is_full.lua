-- Whether memory is full: then Redis has refused the script as it is, and it runs a second time with flags=allow-oom, where
-- it writes only what takes no more room than what it replaces, or the end of a transaction.
-- Leaves  memory_is_full (korvet/redis/scripts.py makes it true); its error is OOM, Redis' own word
local memory_is_full = false
