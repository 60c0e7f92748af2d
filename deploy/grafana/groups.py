"""The dashboard of consumer groups: who is behind, by how much, and which groups do not come to rest."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import Query, Row, Variable, board, graph, listing

_OF = 'job=~"$job", group=~"$group"'
_OF_TOPIC = f'{_OF}, topic=~"$topic"'

_LIST = Row(
    "Now",
    [
        listing(
            "Groups",
            "Lag of all that a group has committed offsets of, by topic.",
            "short",
            Query(f"sum by (group) (korvet_consumer_group_lag_records{{{_OF}}})"),
            Query(f"max by (group) (korvet_consumer_group_lag_seconds{{{_OF}}})"),
            Query(f"max by (group) (korvet_consumer_group_members{{{_OF}}})"),
            Query(f"max by (group) (korvet_consumer_group_generation{{{_OF}}})"),
            by="group",
            columns=("Lag, records", "Lag, seconds", "Members", "Generation"),
        )
    ],
)
_LAG = Row(
    "Lag",
    [
        graph(
            "Lag in seconds",
            "Age of the first record that a group has not committed.",
            "s",
            Query(
                f"max by (group, topic) (korvet_consumer_group_lag_seconds{{{_OF_TOPIC}}})",
                "{{group}} {{topic}}",
            ),
        ),
        graph(
            "Lag in records",
            "Records that a group has not committed.",
            "short",
            Query(
                f"sum by (group, topic) (korvet_consumer_group_lag_records{{{_OF_TOPIC}}})",
                "{{group}} {{topic}}",
            ),
        ),
        graph(
            "Lag by partition",
            "Records not committed, of the ten partitions that are furthest behind.",
            "short",
            Query(
                f"topk(10, korvet_consumer_group_lag_records{{{_OF_TOPIC}}})",
                "{{group}} {{topic}}-{{partition}}",
            ),
        ),
        graph(
            "Figures' age",
            "How long ago the acting keeper took these figures (log.figures.interval.ms).",
            "s",
            Query('time() - max(korvet_log_figures_timestamp_seconds{job=~"$job"})', "age"),
        ),
    ],
)
_MEMBERS = Row(
    "Members",
    [
        graph(
            "Members",
            "Members by group.",
            "short",
            Query(f"max by (group) (korvet_consumer_group_members{{{_OF}}})", "{{group}}"),
            stacked=True,
        ),
        graph(
            "Rebalances",
            "Rebalances an hour, by group: a group that comes to no rest has members that come and go, or take longer"
            " than max.poll.interval.ms.",
            "short",
            Query(
                f"3600 * max by (group) (rate(korvet_consumer_group_rebalances_total{{{_OF}}}[15m]))",
                "{{group}}",
            ),
        ),
        graph(
            "Groups by state",
            "All groups, by state.",
            "short",
            Query('max by (state) (korvet_consumer_groups{job=~"$job"})', "{{state}}"),
            stacked=True,
        ),
        graph(
            "Coordination",
            "Requests of members, by API.",
            "reqps",
            Query(
                "sum by (api) (job_api:korvet_requests:rate5m{"
                'job=~"$job", api=~"JoinGroup|SyncGroup|Heartbeat|LeaveGroup|OffsetCommit|OffsetFetch"})',
                "{{api}}",
            ),
        ),
    ],
)


def dashboard() -> Dashboard:
    """Make it."""
    return board(
        "groups",
        "Korvet: groups and lag",
        "Who is behind, by how much, and which groups do not come to rest.",
        [_LIST, _LAG, _MEMBERS],
        [
            Variable("group", "Group", "korvet_consumer_group_lag_records", "group"),
            Variable("topic", "Topic", "korvet_consumer_group_lag_records", "topic"),
        ],
    )
