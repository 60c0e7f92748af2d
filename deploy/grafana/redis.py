"""The dashboard of the Redis under the brokers: memory, speed, durability, and what of it they feel."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import Query, Row, board, graph, number, quantiles

# Each broker tells of the same Redis: one of them is enough.
_NOW = Row(
    "Now",
    [
        number(
            "Up",
            "1 where Redis answers every broker.",
            "none",
            Query('min(korvet_redis_up{job=~"$job"})'),
            alarm=1,
            low_is_bad=True,
        ),
        number(
            "Memory",
            "Share of maxmemory in use.",
            "percentunit",
            Query('max(job:korvet_redis_memory:ratio{job=~"$job"})'),
            warn=0.7,
            alarm=0.85,
        ),
        number(
            "Persistence",
            "0 where a snapshot, a write or a rewrite of the append-only file failed the last time.",
            "none",
            Query('min(korvet_redis_persistence_ok{job=~"$job"})'),
            alarm=1,
            low_is_bad=True,
        ),
        number(
            "Last fork",
            "How long Redis answered nobody at its last fork.",
            "s",
            Query('max(korvet_redis_last_fork_seconds{job=~"$job"})'),
            warn=0.1,
            alarm=1,
        ),
        number(
            "Evicted",
            "Keys deleted for want of memory within a day: each is lost data.",
            "none",
            Query('max(increase(korvet_redis_evicted_keys_total{job=~"$job"}[1d]))'),
            alarm=1,
        ),
        number(
            "Replicas",
            "Replicas that follow it.",
            "none",
            Query('max(korvet_redis_connected_replicas{job=~"$job"})'),
        ),
    ],
)
_FELT = Row(
    "As the brokers feel it",
    [
        graph(
            "Round trips",
            "From a command's sending to its answer, all operations.",
            "s",
            *quantiles("korvet_redis_round_trip_seconds", 'job=~"$job"'),
        ),
        graph(
            "Round trips by operation, p99",
            "Scripts by name, and all other commands.",
            "s",
            Query(
                "histogram_quantile(0.99, sum by (operation, le) ("
                'rate(korvet_redis_round_trip_seconds_bucket{job=~"$job"}[$__rate_interval])))',
                "{{operation}}",
            ),
        ),
        graph(
            "Script errors",
            "Error answers of scripts. Kafka's names are a rule's refusal, all else is a fault.",
            "ops",
            Query(
                "sum by (script, error) (rate(korvet_redis_script_errors_total{"
                'job=~"$job"}[$__rate_interval])) > 0',
                "{{script}} {{error}}",
            ),
        ),
        graph(
            "Connections lost",
            "Connections made in the place of lost ones, tries that failed, and requests that failed for it.",
            "ops",
            Query('sum(rate(korvet_redis_reconnects_total{job=~"$job"}[$__rate_interval]))', "made anew"),
            Query(
                'sum(rate(korvet_redis_connect_failures_total{job=~"$job"}[$__rate_interval]))',
                "failed tries",
            ),
            Query(
                'sum(rate(korvet_redis_unavailable_total{job=~"$job"}[$__rate_interval]))', "failed requests"
            ),
        ),
    ],
)
_SERVER = Row(
    "Server",
    [
        graph(
            "Memory",
            "What Redis uses, what the system has given to it, and what it may use.",
            "bytes",
            Query('max(korvet_redis_memory_used_bytes{job=~"$job"})', "used"),
            Query('max(korvet_redis_memory_resident_bytes{job=~"$job"})', "resident"),
            Query('max(korvet_redis_memory_max_bytes{job=~"$job"}) > 0', "maxmemory"),
        ),
        graph(
            "CPU",
            "Cores that Redis' own process uses: its commands have one.",
            "percentunit",
            Query('max(rate(korvet_redis_cpu_seconds_total{job=~"$job"}[$__rate_interval]))', "CPU"),
        ),
        graph(
            "Commands",
            "Commands a second, those within scripts included, and those that were slow.",
            "ops",
            Query('max(rate(korvet_redis_commands_total{job=~"$job"}[$__rate_interval]))', "all"),
            Query('max(rate(korvet_redis_slow_commands_total{job=~"$job"}[$__rate_interval]))', "slow"),
        ),
        graph(
            "Traffic",
            "Bytes that Redis reads and writes.",
            "Bps",
            Query('max(rate(korvet_redis_received_bytes_total{job=~"$job"}[$__rate_interval]))', "in"),
            Query('max(rate(korvet_redis_sent_bytes_total{job=~"$job"}[$__rate_interval]))', "out"),
        ),
        graph(
            "Append-only file",
            "Its size, and rewrites under way.",
            "bytes",
            Query('max(korvet_redis_aof_size_bytes{job=~"$job"})', "size"),
        ),
        graph(
            "Delayed fsyncs",
            "Writes put off since the disk was still busy with the fsync before.",
            "ops",
            Query(
                'max(rate(korvet_redis_aof_delayed_fsyncs_total{job=~"$job"}[$__rate_interval]))', "delayed"
            ),
        ),
        graph(
            "Connections",
            "Connections that Redis holds, and how many it takes.",
            "short",
            Query('max(korvet_redis_connected_clients{job=~"$job"})', "connections"),
            Query('max(korvet_redis_max_clients{job=~"$job"})', "maxclients"),
        ),
    ],
)


def dashboard() -> Dashboard:
    """Make it."""
    return board(
        "redis",
        "Korvet: Redis",
        "Memory, speed and durability of the Redis under the brokers, and what of it they feel.",
        [_NOW, _FELT, _SERVER],
    )
