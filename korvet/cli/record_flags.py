"""The flags that commands about records share: which partitions are read, and how batches are compressed.

Knows click; nothing of records.
"""

from __future__ import annotations

import click

PARTITION = click.IntRange(0, 2**31 - 1)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By their numbers in Kafka's batches."""

partitions_option = click.option(
    "--partition",
    "-p",
    "partitions",
    multiple=True,
    metavar="N",
    type=PARTITION,
    help="Only this partition; may be repeated.",
)
compression_option = click.option(
    "--compression",
    "-z",
    type=click.Choice(CODECS),
    default="none",
    show_default=True,
    help="How batches are compressed.",
)
