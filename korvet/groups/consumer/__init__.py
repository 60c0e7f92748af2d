"""Groups of the consumer protocol (KIP-848): the broker assigns partitions, and members reconcile one by one."""
