"""Record batches of magic 2: the header as a view, validation of what a producer sent, building what a consumer gets.

    batch        the 61 bytes before the records, the checks of a produced batch, and its records
    record       what a record is
    compression  Kafka's codecs, decompression bounded
    builder      records -> batches for a consumer

The loops over records are korvet_core's; nothing here works byte by byte in Python.
"""
