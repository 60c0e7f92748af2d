"""Consumer groups: membership, committed offsets, listing, lag and expiry."""
