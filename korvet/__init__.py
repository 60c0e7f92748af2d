"""Korvet: a Kafka-compatible broker that keeps its log in Redis Streams.

The packages, from the top down; imports point down only (tests/test_layers.py holds them):

    cli        the `korvet` command: parse, one call, print
    server     supervisor, workers, ops and keeper processes; connections and dispatch
    handlers   one file per Kafka API key: wire message -> domain calls -> wire message
    domain     what a topic, a log, a producer and a broker are, and which rules they follow
    storage    the keys and scripts in Redis, and the connection to it
    protocol   the Kafka wire format, pure: no input or output, no clock
    errors     Kafka's error codes and Korvet's exceptions
    config     the settings and where each value came from
    streams    standard streams that are closed, or take nothing more

`lua/`, beside this package (inside it in a wheel), holds the scripts that storage runs.
"""

__version__ = "0.1.0"
