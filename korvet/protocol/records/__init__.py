"""Record batches of magic 2, whose records korvet_core reads and writes: nothing here works byte by byte in Python.

batch        the 61 bytes before the records, the checks of a produced batch, and the records of a stored one
record       what a record is
control      the markers that end transactions
compression  Kafka's codecs
"""
