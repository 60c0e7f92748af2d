"""The dashboard of all brokers: whether they serve, how much, how fast, and with what errors."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import Query, Row, board, graph, number, quantiles

_NOW = Row(
    "Now",
    [
        number(
            "Brokers up",
            "Brokers whose ops port answers Prometheus.",
            "none",
            Query('sum(up{job=~"$job"})'),
            alarm=1,
            low_is_bad=True,
        ),
        number(
            "Workers",
            "Workers that take connections.",
            "none",
            Query('sum(korvet_workers{job=~"$job", state="accepting"})'),
            alarm=1,
            low_is_bad=True,
        ),
        number(
            "Requests",
            "Requests answered a second.",
            "reqps",
            Query('sum(job_api:korvet_requests:rate5m{job=~"$job"})'),
        ),
        number(
            "Errors",
            "Share of requests answered with an error.",
            "percentunit",
            Query('max(job:korvet_request_errors:ratio5m{job=~"$job"})'),
            warn=0.01,
            alarm=0.05,
        ),
        number(
            "Restarts",
            "Processes that died and were started anew within an hour.",
            "none",
            Query('sum(increase(korvet_child_restarts_total{job=~"$job"}[1h]))'),
            warn=1,
            alarm=5,
        ),
        number(
            "Redis' memory",
            "Share of maxmemory in use; producers are throttled from 85 %, refused from 95 %.",
            "percentunit",
            Query('max(job:korvet_redis_memory:ratio{job=~"$job"})'),
            warn=0.7,
            alarm=0.85,
        ),
    ],
)
_REQUESTS = Row(
    "Requests",
    [
        graph(
            "Requests",
            "Requests answered, by API.",
            "reqps",
            Query('sum by (api) (job_api:korvet_requests:rate5m{job=~"$job"})', "{{api}}"),
            stacked=True,
        ),
        graph(
            "Errors",
            "Answers with an error, by API and error. Some are of the protocol's course: a group that rebalances tells"
            " REBALANCE_IN_PROGRESS.",
            "reqps",
            Query(
                'sum by (api, error) (rate(korvet_requests_total{job=~"$job", error!="NONE"}[$__rate_interval])) > 0',
                "{{api}} {{error}}",
            ),
        ),
        graph(
            "Time of Produce",
            "From the last byte of a request to its response.",
            "s",
            *quantiles("korvet_request_duration_seconds", 'job=~"$job", api="Produce"'),
        ),
        graph(
            "Time of other requests, p99",
            "Without those whose answer waits for what the client asked for (Fetch, JoinGroup, SyncGroup).",
            "s",
            Query(
                "histogram_quantile(0.99, sum by (api, le) (rate(korvet_request_duration_seconds_bucket{"
                'job=~"$job", api!~"Produce|Fetch|JoinGroup|SyncGroup"}[$__rate_interval])))',
                "{{api}}",
            ),
        ),
        graph(
            "Where Produce spends its time",
            "Mean time of a request by stage; the stages add up.",
            "s",
            Query(
                'sum by (stage) (job_api_stage:korvet_request_stage:mean5m{job=~"$job", api="Produce"})',
                "{{stage}}",
            ),
            stacked=True,
        ),
        graph(
            "Where Fetch spends its time",
            "Mean time of a request by stage; wait is for records that are not there yet.",
            "s",
            Query(
                'sum by (stage) (job_api_stage:korvet_request_stage:mean5m{job=~"$job", api="Fetch"})',
                "{{stage}}",
            ),
            stacked=True,
        ),
        graph(
            "In flight and parked",
            "Requests being served, and of those the ones that wait for others: fetches for records, joins and syncs"
            " for members.",
            "short",
            Query('sum by (instance) (korvet_requests_in_flight{job=~"$job"})', "in flight, {{instance}}"),
            Query('sum by (api) (korvet_requests_parked{job=~"$job"})', "parked {{api}}"),
        ),
        graph(
            "Throttled",
            "Share of time for which producers' connections were held up for want of memory or disk, summed.",
            "percentunit",
            Query(
                'sum by (instance) (rate(korvet_throttle_seconds_total{job=~"$job"}[$__rate_interval]))',
                "{{instance}}",
            ),
        ),
    ],
)
_CONNECTIONS = Row(
    "Connections",
    [
        graph(
            "Open connections",
            "Client connections, by broker.",
            "short",
            Query('sum by (instance) (korvet_connections{job=~"$job"})', "{{instance}}"),
        ),
        graph(
            "Opened and closed",
            "Connections opened, and closed by reason.",
            "cps",
            Query('sum(rate(korvet_connections_opened_total{job=~"$job"}[$__rate_interval]))', "opened"),
            Query(
                'sum by (reason) (rate(korvet_connections_closed_total{job=~"$job"}[$__rate_interval]))',
                "closed: {{reason}}",
            ),
        ),
        graph(
            "Bytes in and out",
            "Bytes of requests and of responses.",
            "Bps",
            Query('sum(rate(korvet_received_bytes_total{job=~"$job"}[$__rate_interval]))', "in"),
            Query('sum(rate(korvet_sent_bytes_total{job=~"$job"}[$__rate_interval]))', "out"),
        ),
    ],
)
_PROCESSES = Row(
    "Processes",
    [
        graph(
            "CPU",
            "Cores that each process uses; a worker at 1 can do no more.",
            "percentunit",
            Query(
                'rate(korvet_process_cpu_seconds_total{job=~"$job"}[$__rate_interval])',
                "{{instance}} {{process}}",
            ),
        ),
        graph(
            "Memory",
            "Resident memory of each process; what it shares with others counts for each.",
            "bytes",
            Query('korvet_process_resident_bytes{job=~"$job"}', "{{instance}} {{process}}"),
        ),
        graph(
            "Keeper",
            "Turns of the keeper's tasks that did not end well, by task.",
            "ops",
            Query(
                "sum by (task, outcome) (rate(korvet_keeper_turns_total{"
                'job=~"$job", outcome!="done"}[$__rate_interval])) > 0',
                "{{task}} {{outcome}}",
            ),
        ),
        graph(
            "Versions",
            "Brokers by version: several only during an upgrade.",
            "short",
            Query('count by (version) (korvet_build_info{job=~"$job"})', "{{version}}"),
            stacked=True,
        ),
    ],
)


def dashboard() -> Dashboard:
    """Make it."""
    return board(
        "overview",
        "Korvet: overview",
        "Whether the brokers serve, how much, how fast, and with what errors.",
        [_NOW, _REQUESTS, _CONNECTIONS, _PROCESSES],
    )
