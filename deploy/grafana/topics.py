"""The dashboard of topics: what comes in and goes out, and what is kept."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import Query, Row, Variable, board, graph, listing

_OF = 'job=~"$job", topic=~"$topic"'


def _rate(metric: str) -> str:
    return f"sum by (topic) (rate({metric}{{{_OF}}}[$__rate_interval]))"


_LIST = Row(
    "Now",
    [
        listing(
            "Topics",
            "Topics by what came in within five minutes.",
            "short",
            Query(f"sum by (topic) (rate(korvet_topic_received_records_total{{{_OF}}}[5m]))"),
            Query(f"sum by (topic) (rate(korvet_topic_sent_records_total{{{_OF}}}[5m]))"),
            Query(f"sum by (topic) (korvet_log_records{{{_OF}}})"),
            Query(f"sum by (topic) (korvet_log_size_bytes{{{_OF}}})"),
            by="topic",
            columns=("Records in a second", "Records out a second", "Records", "Bytes"),
        )
    ],
)
_TRAFFIC = Row(
    "Traffic",
    [
        graph(
            "Records in",
            "Records of producers appended.",
            "ops",
            Query(_rate("korvet_topic_received_records_total"), "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Records out",
            "Records sent to consumers.",
            "ops",
            Query(_rate("korvet_topic_sent_records_total"), "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Bytes in",
            "Bytes of batches, as producers sent them.",
            "Bps",
            Query(_rate("korvet_topic_received_bytes_total"), "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Bytes out",
            "Bytes of batches, as consumers got them.",
            "Bps",
            Query(_rate("korvet_topic_sent_bytes_total"), "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Batches refused",
            "Batches that were not appended, by error.",
            "ops",
            Query(
                'sum by (error) (rate(korvet_produce_errors_total{job=~"$job"}[$__rate_interval])) > 0',
                "{{error}}",
            ),
        ),
    ],
)
_LOG = Row(
    "Logs",
    [
        graph(
            "Size in Redis",
            "Bytes of logs as they lie in Redis.",
            "bytes",
            Query(f"sum by (topic) (korvet_log_size_bytes{{{_OF}}})", "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Age of the oldest record",
            "By its timestamp: about retention.ms, where that is what ends records.",
            "s",
            Query(f"max by (topic) (korvet_log_oldest_record_age_seconds{{{_OF}}})", "{{topic}}"),
        ),
        graph(
            "Trimmed",
            "Records that left their log, by reason.",
            "ops",
            Query(
                'sum by (reason) (rate(korvet_log_trimmed_records_total{job=~"$job"}[$__rate_interval]))',
                "{{reason}}",
            ),
            stacked=True,
        ),
        graph(
            "Not compacted",
            "Share of a compacted topic's log that is not compacted yet.",
            "percentunit",
            Query(f"max by (topic) (korvet_log_dirty_ratio{{{_OF}}})", "{{topic}}"),
            largest=1,
        ),
    ],
)


def dashboard() -> Dashboard:
    """Make it."""
    return board(
        "topics",
        "Korvet: topics",
        "What comes in and goes out by topic, and what is kept.",
        [_LIST, _TRAFFIC, _LOG],
        [Variable("topic", "Topic", "korvet_log_records", "topic")],
    )
