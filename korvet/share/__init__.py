"""Share groups (KIP-932): records of a partition delivered to any member of a group, one by one acknowledged."""
