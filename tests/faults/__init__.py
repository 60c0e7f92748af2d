"""What may befall a broker in production, each with clients at work.

`test_each_fault` has the checker of tests/jepsen let its faults come. For the others two idempotent producers of
different libraries write, a group reads. Afterwards every acknowledged record is in the log, once and in order, and
the group has got all of them. How long producers had to wait after a fault until all that they had sent was
acknowledged is printed at the end; nothing is asserted of it.
"""
