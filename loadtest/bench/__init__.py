"""The benchmark against Apache Kafka: `make bench`, or `python -m loadtest.bench` from the repository.

`__main__` reads the flags and runs rounds; `peers`, `redis_peer` and `mock_cluster` start what is measured; `toolchain`
makes and `load` drives the one warm Java process that puts the same load on every broker; `throughput`, `latency` and
`scale` are the measurements; `results` keeps figures and prints them, `chart` draws them. `processes` knows /proc.
Nothing here is imported by Korvet.
"""
