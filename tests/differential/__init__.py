"""Apache Kafka and Korvet get the same requests, and their answers are compared field by field.

`make test-differential` runs it. wire.py knows the format, brokers.py starts both brokers, session.py asks one of them,
rooms/ has the requests, compare.py finds the differences. expected.toml lists those that are known, each with its
reason; docs/reference/differences.md is made of it.
"""
