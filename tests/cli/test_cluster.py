"""`korvet cluster describe` and `korvet apis`: brokers, controller, and the APIs that they serve."""

from __future__ import annotations

import json
import socket
import sys
from http import HTTPStatus
from pathlib import Path
from threading import Thread

import pytest
from confluent_kafka.admin import AdminClient as Librdkafka

from korvet import __version__
from korvet.admin.cluster import LogDir, LogSize
from korvet.admin.errors import AdminError
from korvet.admin.types import TopicPartition
from korvet.cli.cluster import _log_dirs
from korvet.console.http import Answer, HttpServer
from korvet.handlers.registry import HANDLERS
from tests.cli.commands import COMMAND_SECONDS_MAX, done, failed, korvet, table
from tests.support import silent_names
from tests.support.in_process import InProcessBroker
from tests.support.processes import free_port
from tests.support.topic_client import Client


def test_the_brokers_and_the_controller_are_shown(broker: InProcessBroker) -> None:
    printed = done(korvet("cluster", "describe", "-b", broker.bootstrap))
    metadata = Librdkafka({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30)
    assert printed.splitlines()[0] == f"cluster {metadata.cluster_id}"
    assert done(korvet("cluster", "-b", broker.bootstrap)) == printed
    assert "describe" in done(korvet("cluster", "-h"))
    assert table(printed) == [["0", broker.bootstrap, "-", __version__, "2", "yes"]]
    host, port = broker.address
    result = json.loads(korvet("cluster", "describe", "-b", broker.bootstrap, "--json").stdout)
    assert result == {
        "id": metadata.cluster_id,
        "controller": 0,
        "brokers": [{"id": 0, "host": host, "port": port, "rack": None, "version": __version__, "format": 2}],
    }


def test_apis_and_features_are_shown_where_they_are_asked_for(broker: InProcessBroker) -> None:
    flags = ("-b", broker.bootstrap, "--apis", "--features")
    result = json.loads(korvet("cluster", "describe", *flags, "--json").stdout)
    [of_broker] = result["apis"]
    assert of_broker["broker"] == 0
    served = {item["key"]: (item["name"], item["versions"]) for item in of_broker["apis"]}
    assert served.keys() == HANDLERS.keys()
    assert served[18] == ("ApiVersions", [0, 4])
    assert result["features"].keys() == {"supported", "finalized"}
    printed = done(korvet("cluster", "describe", *flags))
    assert "broker 0\n" in printed
    assert ["18", "ApiVersions", "0-4"] in [line.split() for line in printed.splitlines()]


def test_what_one_broker_says_of_a_directory_is_not_lost_by_another_one() -> None:
    known = LogDir(
        "redis://here:6379/0", None, {TopicPartition("held", 0): LogSize(7, 0, future=False)}, 100, 93
    )
    away = LogDir("redis://here:6379/0", AdminError("away"), {}, None, None)
    for first, second in ((known, away), (away, known)):
        [row] = _log_dirs({0: [first], 1: [second]})
        assert row == {
            "path": "redis://here:6379/0",
            "brokers": [0, 1],
            "partitions": 1,
            "bytes": 7,
            "total_bytes": 100,
            "usable_bytes": 93,
            "error": "away",
        }


def test_log_directories_are_shown_with_what_they_hold(broker: InProcessBroker) -> None:
    with Client(broker.address) as client:
        client.create("held", 3)
        client.append("held", b"x" * 1000)
    described = korvet("cluster", "describe", "-b", broker.bootstrap, "--log-dirs", "--json")
    results = json.loads(done(described))["log_dirs"]
    assert sum(result["partitions"] for result in results) >= 3
    assert sum(result["bytes"] for result in results) > 1000
    assert all((result["brokers"], result["error"]) == ([0], None) for result in results)
    printed = done(korvet("cluster", "describe", "-b", broker.bootstrap, "--log-dirs"))
    assert all(result["path"] in printed for result in results)
    assert "Commands/s" not in printed


def test_the_load_of_redis_is_shown_by_its_url_or_settings(broker: InProcessBroker, tmp_path: Path) -> None:
    describe = ("cluster", "describe", "-b", broker.bootstrap)
    settings = tmp_path / "korvet.toml"
    settings.write_text(f'"redis.url" = "{broker.redis_url}"\n')
    for way in (("--redis-url", broker.redis_url), ("--config", str(settings))):
        for item in json.loads(done(korvet(*describe, *way, "--json")))["log_dirs"]:
            load = item["load"]
            assert set(load) == {"commands_per_second", "cpu_seconds", "memory", "memory_max", "clients"}
            assert load["commands_per_second"] >= 0
            assert load["memory_max"] >= 0
            assert min(load["cpu_seconds"], load["memory"], load["clients"]) > 0
        printed = done(korvet(*describe, *way)).splitlines()
        [heading] = [line.split() for line in printed if line.startswith("Log directory")]
        assert heading[-6:] == ["Commands/s", "CPU", "s", "Memory", "Limit", "Clients"]


def test_the_load_of_a_redis_that_is_away_is_not_known(broker: InProcessBroker) -> None:
    flags = ("-b", broker.bootstrap, "--redis-url", f"redis://127.0.0.1:{free_port()}")
    described = json.loads(done(korvet("cluster", "describe", *flags, "--json")))
    assert {value for item in described["log_dirs"] for value in item["load"].values()} == {None}
    wrong = korvet("cluster", "describe", "-b", broker.bootstrap, "--redis-url", "http://127.0.0.1")
    assert "redis.url" in failed(wrong, 2)


@pytest.mark.slow
def test_a_port_where_http_is_spoken_is_recognized() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(listener, lambda _request: Answer(HTTPStatus.OK, "text/plain", b""))
        Thread(target=server.serve_forever, daemon=True).start()
        address = "{}:{}".format(*listener.getsockname())
        message = failed(korvet("topics", "list", "-b", address))
        server.shutdown()
    assert message == (
        f"Error: {address} speaks HTTP: Kafka clients connect to another port, that of `listen`\n"
    )


@pytest.mark.slow
def test_a_name_that_does_not_resolve_is_not_tried_for_the_whole_timeout(broker: InProcessBroker) -> None:
    message = failed(korvet("topics", "list", "-b", "no-such-host.invalid", "--timeout", "600"))
    assert "Error: no connection to no-such-host.invalid:9092: " in message
    # One that answers will do.
    done(korvet("topics", "list", "-b", f"no-such-host.invalid:1,{broker.bootstrap}"))


@pytest.mark.slow
def test_a_name_server_that_is_silent_is_waited_for_five_seconds() -> None:
    command = (sys.executable, "-m", "korvet", "topics", "list", "-b", "broker.example")
    message = failed(silent_names.run(*command, seconds_max=COMMAND_SECONDS_MAX))
    assert message == "Error: no connection to broker.example:9092: its name is not resolved within 5.0 s\n"


def test_each_api_is_listed_with_its_versions() -> None:
    lines = [line.split() for line in korvet("apis").stdout.splitlines()]
    handlers = [handler for _, handler in sorted(HANDLERS.items())]
    for handler in handlers:
        api = handler.request.api
        name = handler.request.__name__.removesuffix("Request")
        assert [str(api.key), name, "-".join(map(str, api.versions))] in [line[:3] for line in lines]
    assert ["47", "OffsetDelete", "0-0", "none"] in lines
    listed = json.loads(korvet("apis", "--json").stdout)
    assert listed["Produce"] == {"key": 0, "versions": [3, 13], "advertised": [0, 13], "flexible": 9}
    assert (listed["OffsetDelete"]["flexible"], len(listed)) == (None, len(HANDLERS))
