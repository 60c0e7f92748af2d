"""The log of a partition: append, fetch, index, retention, compaction, and the remote tier."""
