"""Jobs of the lake under kills: a client of others produces, processes are killed, and every record is there once.

producing  the client: librdkafka with acks=all, and what was acknowledged
readers    what tables hold, as deltalake, Delta Lake on Spark, Polars and DuckDB read them
killing    which process is killed when, from a seed
archiving  `korvet lake archive`, with compaction and expiry beside it
pipelines  `korvet lake pipeline run`: JSON appended or merged into Delta, with dead letters
system     broker, store, Spark and the processes of the lake, of which any can be killed
__main__   one run: `python -m tests.lake_kills --work archive --kills 20 --seed 7`
"""
