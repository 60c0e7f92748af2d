"""The remote tier of a log (KIP-405): records that lie in the lake and no longer in Redis."""
