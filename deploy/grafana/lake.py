"""The dashboard of the lake."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import Query, Row, board, graph


def dashboard() -> Dashboard:
    """Make it."""
    return board(
        "lake",
        "Korvet: lake",
        "How far topics are archived, and how consumers read what is.",
        [
            Row(
                "Reading",
                [
                    graph(
                        "Failed reads",
                        "Reads of archived records that failed: fetches and look-ups by time.",
                        "ops",
                        Query(
                            'sum by (instance) (rate(korvet_lake_read_errors_total{job=~"$job"}[$__rate_interval]))',
                            "{{instance}}",
                        ),
                    )
                ],
            )
        ],
    )
