"""The benchmark against Apache Kafka: `make bench`, or `python -m loadtest.bench` from the repository.

`__main__` has the flags, `run` the order; `peers` starts what is measured; `toolchain` makes and `load` drives the one
warm Java process that puts the same load on every broker; `throughput`, `scale` and `cost` measure, the latter two by
the requests of `produce_loop`; `results` keeps figures and prints them, `chart` draws them.
"""
