"""The dashboard of the lake: how far topics are archived, what tables take, and how consumers read what is archived."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import Query, Row, Variable, board, graph, listing, quantiles

_OF = 'job=~"$job", topic=~"$topic"'


def _rate(metric: str, by: str = "") -> str:
    return f'sum{f" by ({by})" if by else ""} (rate({metric}{{job=~"$job"}}[$__rate_interval]))'


_LIST = Row(
    "Now",
    [
        listing(
            "Tables",
            "Topics with a table, by what is not archived yet.",
            "short",
            Query(f"max by (topic) (korvet_lake_lag_seconds{{{_OF}}})"),
            Query(f"sum by (topic) (korvet_lake_lag_records{{{_OF}}})"),
            Query(f"max by (topic) (korvet_lake_table_records{{{_OF}}})"),
            Query(f"max by (topic) (korvet_lake_table_files{{{_OF}}})"),
            Query(f"max by (topic) (korvet_lake_table_bytes{{{_OF}}})"),
            by="topic",
            columns=("Lag, seconds", "Lag, records", "Records", "Files", "Bytes"),
        )
    ],
)
_ARCHIVING = Row(
    "Archiving",
    [
        graph(
            "Lag in seconds",
            "Age of the oldest record that is not archived.",
            "s",
            Query(f"max by (topic) (korvet_lake_lag_seconds{{{_OF}}})", "{{topic}}"),
        ),
        graph(
            "Lag in records",
            "Records that are not archived.",
            "short",
            Query(f"sum by (topic) (korvet_lake_lag_records{{{_OF}}})", "{{topic}}"),
        ),
        graph(
            "Archived",
            "Records archived a second.",
            "ops",
            Query(_rate("korvet_lake_archived_records_total"), "records"),
        ),
        graph(
            "Rounds",
            "Rounds of archiving and of upkeep, by outcome.",
            "ops",
            Query(_rate("korvet_lake_rounds_total", "outcome"), "archiving: {{outcome}}"),
            Query(_rate("korvet_lake_upkeeps_total", "outcome"), "upkeep: {{outcome}}"),
        ),
        graph(
            "Lost and forestalled",
            "Ranges whose records left Redis before they were archived, and commits that another archiver forestalled.",
            "ops",
            Query(_rate("korvet_lake_lost_ranges_total"), "lost ranges"),
            Query(_rate("korvet_lake_conflicts_total"), "conflicts"),
        ),
    ],
)
_TABLES = Row(
    "Tables",
    [
        graph(
            "Size",
            "Bytes of the files of each table.",
            "bytes",
            Query(f"max by (topic) (korvet_lake_table_bytes{{{_OF}}})", "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Files",
            "Files of each table: compaction keeps them few.",
            "short",
            Query(f"max by (topic) (korvet_lake_table_files{{{_OF}}})", "{{topic}}"),
        ),
        graph(
            "Upkeep",
            "Files merged into larger ones, and files that left their table by retention.",
            "ops",
            Query(_rate("korvet_lake_compacted_files_total"), "merged"),
            Query(_rate("korvet_lake_expired_files_total"), "expired"),
        ),
    ],
)
_READING = Row(
    "Reading",
    [
        graph(
            "Time of reads",
            "Until the lake answered a fetch of archived records.",
            "s",
            *quantiles("korvet_lake_read_duration_seconds", 'job=~"$job", kind="read"'),
        ),
        graph(
            "Reads",
            "What the lake is asked: records, and offsets by time.",
            "ops",
            Query(_rate("korvet_lake_read_duration_seconds_count", "kind"), "{{kind}}"),
        ),
        graph(
            "Failed reads",
            "Fetches and look-ups by time that failed: consumers are told KAFKA_STORAGE_ERROR.",
            "ops",
            Query(_rate("korvet_lake_read_errors_total"), "failed"),
        ),
    ],
)


def dashboard() -> Dashboard:
    """Make it."""
    return board(
        "lake",
        "Korvet: lake",
        "How far topics are archived, what their tables take, and how consumers read what is archived.",
        [_LIST, _ARCHIVING, _TABLES, _READING],
        [Variable("topic", "Topic", "korvet_lake_lag_records", "topic")],
    )
