"""`korvet doctor`: each fault is provoked, and is named with what to change; where there is none, nothing is."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from gevent import subprocess as gevent_subprocess

from korvet.config.listeners import wanted_listeners
from korvet.config.settings import Settings
from korvet.config.sources import load
from korvet.doctor import addresses, machine, redis_server
from korvet.doctor import settings as settings_checks
from korvet.lake.table import Lake
from korvet.server.finding import Finding, Level
from korvet.server.supervisor import checks
from tests.cli.commands import korvet, refused
from tests.support import processes
from tests.support.authority import Authority
from tests.support.broker import korvet_broker
from tests.support.partition_state import write_format
from tests.support.proxy import proxy
from tests.support.redis_servers import embedded_server, master

KORVET = [sys.executable, "-m", "korvet", "doctor"]


def settings(**values: str) -> Settings:
    """Return settings; `__` in a name stands for a dot."""
    return load(None, {}, {name.replace("__", "."): value for name, value in values.items()}).settings


def bad(findings: Iterator[Finding]) -> dict[str, Finding]:
    """Return the findings that are not ok, by their check; each says what to change."""
    result = {finding.what: finding for finding in findings if finding.level is not Level.OK}
    assert all(value.advice for value in result.values())
    return result


def start(given: Settings) -> Iterator[Finding]:
    """Yield what a start would find of the settings."""
    return checks.examine(given, wanted_listeners(given.listeners, given.listen))


def doctor(*flags: str, environ: dict[str, str] | None = None) -> tuple[int, dict[str, dict[str, str]]]:
    result = korvet("doctor", "--json", *flags, environ=environ)
    assert result.stderr == ""
    return result.returncode, {item["check"]: item for item in json.loads(result.stdout)}


@pytest.fixture
def durable() -> Iterator[str]:
    """Give a Redis in which a broker finds no fault."""
    with embedded_server("--appendonly", "yes", "--maxmemory", "64mb") as url:
        yield url


@pytest.mark.slow
@pytest.mark.embedded
def test_a_healthy_broker_has_no_errors(tmp_path: Path) -> None:
    store = Authority(tmp_path / "ca").issue("/CN=broker").store
    names = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT")
    common = ("--set", f"ssl.keystore.location={store}", "--set", "embedded.maxmemory.bytes=67108864")
    listeners = ",".join(f"{name}://127.0.0.1:0" for name in names)
    with korvet_broker(tmp_path, *common, "--set", f"listeners={listeners}", listen=()) as broker:
        bound = ",".join("{}://{}:{}".format(name, *broker.at(name)) for name in names)
        flags = ("--ops-listen", broker.ops_address, "--data-dir", str(broker.data_dir))
        code, result = doctor(*common[:2], *flags, "--set", f"listeners={bound}", "--set", "num.partitions=2")
        assert code == 0
        assert [value for value in result.values() if value["level"] == "error"] == []
        for what in ("listeners", "ops.listen"):
            assert "a broker listens" in result[what]["finding"]
        for name in names:
            address = broker.bootstrap_of(name)
            assert result[f"advertised ({name})"]["finding"] == f"{address} answers"
        assert "Valkey" in result["redis"]["finding"]
        assert result["clock"]["level"] == "ok"
        assert result["cluster.id"]["finding"] in broker.output()


def test_the_table_says_what_the_json_says(tmp_path: Path) -> None:
    flags = ["--listen", "0.0.0.0:0", "--ops-listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "none")]
    table = korvet("doctor", *flags)
    code, result = doctor(*flags)
    assert table.returncode == code == 1
    levels = [row["level"] for row in result.values()]
    assert levels == sorted(levels, key=("error", "warning", "ok").index)
    # How much is free is another figure by then.
    said = re.sub(r"\d[\d.,]*", "#", table.stdout)
    for value in result.values():
        assert re.sub(r"\d[\d.,]*", "#", value["finding"]) in said
        assert value["advice"] in table.stdout


@pytest.fixture
def any_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no Redis be too slow: where other tests use every core, it may be."""
    monkeypatch.setattr(redis_server, "_SLOW_MS", 60_000.0)
    monkeypatch.setattr(redis_server, "_TOO_SLOW_MS", 60_000.0)


@pytest.mark.slow
@pytest.mark.usefixtures("any_latency")
def test_a_redis_that_no_broker_uses_stays_empty(durable: str) -> None:
    assert bad(redis_server.examine(settings(redis__url=durable))) == {}
    with redis.Redis.from_url(durable) as client:
        assert client.keys("*") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "what", "level", "said"),
    [
        (["--maxmemory-policy", "allkeys-lru"], "redis", Level.ERROR, "maxmemory-policy is allkeys-lru"),
        (["--appendonly", "no"], "durability", Level.ERROR, "appendonly is off"),
        (["--appendfsync", "no"], "durability", Level.WARNING, "when the operating system likes"),
        (["--maxmemory", "0"], "memory", Level.WARNING, "no limit"),
        (["--maxmemory", "1gb"], "", Level.OK, ""),
        (["--maxmemory", "1000gb"], "memory", Level.WARNING, "nearly all of the machine's memory"),
        (["--maxclients", "12"], "maxclients", Level.WARNING, "of 12 connections"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
@pytest.mark.usefixtures("any_latency")
def test_a_redis_that_is_set_up_badly(options: list[str], what: str, level: Level, said: str) -> None:
    with embedded_server("--appendonly", "yes", "--maxmemory", "64mb", *options) as url:
        result = bad(redis_server.examine(settings(redis__url=url)))
    assert list(result) == ([what] if what else [])
    if what:
        assert result[what].level is level
        assert said in result[what].said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "row", "said"),
    [
        (
            "{korvet:brokers}:format",
            {"version": "9.1", "format": 12, "reader": 1, "writer": 12},
            "may not write it: take Korvet 9.1 or later",
        ),
        (
            "korvet:topics",
            {"orders": "a row"},
            "the logs were written by a Korvet before format 1",
        ),
    ],
)
def test_data_of_another_version_is_an_error(durable: str, key: str, row: dict[str, Any], said: str) -> None:
    with redis.Redis.from_url(durable) as client:
        client.hset(key, mapping=row)
        assert said in bad(redis_server.examine(settings(redis__url=durable)))["redis"].said


@pytest.mark.slow
def test_the_limit_of_memory_that_is_advised_is_two_thirds_of_the_machine_s(durable: str) -> None:
    with redis.Redis.from_url(durable) as client:
        total = client.info("memory")["total_system_memory"]
        client.config_set("maxmemory", 0)
    advice = bad(redis_server.examine(settings(redis__url=durable)))["memory"].advice
    assert advice == f"set maxmemory to two thirds of the machine's memory: {total * 2 // 3}"


@pytest.mark.slow
@pytest.mark.parametrize(("percent", "level"), [(90, Level.WARNING), (99, Level.ERROR)])
def test_memory_that_is_short(durable: str, percent: int, level: Level) -> None:
    with redis.Redis.from_url(durable) as client:
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", used * 100 // percent)
    result = bad(redis_server.examine(settings(redis__url=durable)))
    assert result["memory"].level is level
    assert "maxmemory" in result["memory"].advice
    assert level is Level.WARNING or "its maxmemory is" in result["producers"].said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "given", "what", "said"),
    [
        ("PING", {"replicas": "2"}, "replicas", "waits for 2 replicas, and 0 are"),
        ("REPLICAOF 127.0.0.1 1", {}, "redis", "this is a replica of 127.0.0.1:1, which takes no writes"),
        ("CONFIG SET appendonly no", {"replicas": "1"}, "restart", "appendonly"),
        ("SET korvet:cluster-id theirs", {"cluster__id": "mine"}, "cluster.id", "theirs, not to mine"),
        ("ACL SETUSER default -xadd -config -multi", {}, "redis", "permissions are missing: XADD, MULTI"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_a_redis_that_is_none_for_these_settings(
    durable: str, command: str, given: dict[str, str], what: str, said: str
) -> None:
    asked = settings(redis__url=durable, **given)
    assert what == "replicas" or what not in bad(redis_server.examine(asked))
    with redis.Redis.from_url(durable) as client:
        words: list[Any] = command.split()
        client.execute_command(*words)
    result = bad(redis_server.examine(asked))[what]
    assert result.level is Level.ERROR
    assert said in f"{result.said}, {result.advice}"


@pytest.mark.slow
def test_topics_that_want_more_servers_than_are_in_sync(durable: str) -> None:
    with redis.Redis.from_url(durable) as client:
        write_format(client)
        wanted = "min.insync.replicas"
        for name, configs in (("a", {wanted: "2"}), ("b", {wanted: "1"}), ("c", {})):
            client.hset("korvet:topics", name, json.dumps({"id": name, "partitions": 1, "configs": configs}))
        client.hset("korvet:topics", "damaged", "{")
    result = bad(redis_server.examine(settings(redis__url=durable)))["topics"]
    assert result.said == "servers in sync: 1, fewer than min.insync.replicas of a (2); acks=all is refused"
    result = bad(redis_server.examine(settings(redis__url=durable, min__insync__replicas="2")))["topics"]
    assert "fewer than min.insync.replicas of a (2), c (2); acks=all" in result.said


@pytest.mark.slow
def test_settings_of_the_start_that_clients_have_altered(durable: str) -> None:
    with redis.Redis.from_url(durable) as client:
        client.hset("{korvet:topics}:brokers", "default", '{"log.retention.ms": "5", "log.roll.ms": "6"}')
    given = load(None, {}, {"redis.url": durable, "log.retention.ms": "7"})
    [result] = bad(settings_checks.examine_altered(given)).values()
    assert result.said == "7 (command line) has no effect: clients have set 5 (cluster-wide)"


@pytest.mark.slow
def test_a_replica_in_sync_counts_for_topics() -> None:
    with master() as server, server.replica():
        write_format(server.client)
        row = {"id": "a", "partitions": 1, "configs": {"min.insync.replicas": "2"}}
        server.client.hset("korvet:topics", "a", json.dumps(row))
        assert "topics" not in bad(redis_server.examine(settings(redis__url=server.url)))


@pytest.mark.slow
def test_a_redis_far_away_and_slow(durable: str) -> None:
    with proxy(durable) as far:
        far.delay_s = 0.06  # each way
        done = gevent_subprocess.run(
            [*KORVET, "--json", "--redis-url", far.url, "--listen", "127.0.0.1:0"],
            stdout=gevent_subprocess.PIPE,
            timeout=120,
            check=False,
        )
    result = {row["check"]: row for row in json.loads(done.stdout)}
    assert (done.returncode, result["latency"]["level"]) == (1, "error")


@pytest.mark.slow
@pytest.mark.parametrize(("ahead_s", "word"), [(3600.0, "ahead of"), (-3600.0, "behind")])
def test_a_clock_that_is_an_hour_off(durable: str, ahead_s: float, word: str) -> None:
    with redis.Redis.from_url(durable) as client:
        assert machine.clock(client).level is Level.OK
        finding = machine.clock(client, lambda: time.time() + ahead_s)
    assert finding.level is Level.WARNING
    assert f"s {word}" in finding.said
    assert finding.said.startswith(("3599.", "3600."))


@pytest.mark.parametrize(
    ("setting", "what", "said"),
    [
        ("replicas=1", "replicas", "the embedded server has no replicas"),
        ("sasl.enabled.mechanisms=", "SASL (SASL_PLAINTEXT)", "names no mechanism"),
        ("sasl.enabled.mechanisms=OAUTHBEARER", "SASL (SASL_PLAINTEXT)", "jwks.endpoint.url"),
    ],
)
def test_what_a_start_refuses_is_an_error(tmp_path: Path, setting: str, what: str, said: str) -> None:
    flags = ("--set", "listeners=SASL_PLAINTEXT://127.0.0.1:0", "--ops-listen", "")
    code, result = doctor(*flags, "--set", setting, "--data-dir", str(tmp_path / "none"))
    assert (code, result[what]["level"]) == (1, "error")
    assert said in result[what]["finding"]


def test_a_port_that_another_process_has(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for flag, setting in (("--listen", "listen"), ("--ops-listen", "ops.listen")):
            code, result = doctor(flag, f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "none"))
            assert code == 1
            assert f"process {os.getpid()} (" in result[setting]["finding"]


@pytest.mark.slow
@pytest.mark.embedded
def test_a_broker_of_another_cluster_on_the_port_is_no_healthy_one(tmp_path: Path, durable: str) -> None:
    with korvet_broker(tmp_path, workers=1) as broker:
        flags = ("--listen", broker.bootstrap, "--ops-listen", "")
        for own, cluster in (
            (("--data-dir", str(tmp_path / "none")), "not started"),
            (("--redis-url", durable), "not started"),
            (("--redis-url", durable, "--set", "cluster.id=mine"), "mine"),
        ):
            code, result = doctor(*flags, *own)
            assert (code, result["listen"]["level"]) == (1, "error")
            assert re.search(
                rf"a broker of cluster \S+ listens; the cluster of these settings is {cluster}$",
                result["listen"]["finding"],
            )
        _, result = doctor(*flags, "--data-dir", str(broker.data_dir))
        assert "a broker listens" in result["listen"]["finding"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "no authentication and no authorizer"),
        ({"authorizer__class__name": "StandardAuthorizer"}, "no authentication:"),
        ({"listeners": "SASL_PLAINTEXT://0.0.0.0:0"}, "no authorizer:"),
        ({"listeners": "SASL_SSL://0.0.0.0:0", "authorizer__class__name": "StandardAuthorizer"}, ""),
        ({"listen": "127.0.0.1:0"}, ""),
    ],
)
def test_a_listener_beyond_this_machine_that_lets_everybody_do_everything(
    values: dict[str, str], said: str
) -> None:
    if "listeners" in values:
        values = values | {
            "advertised__listeners": values["listeners"].replace("0.0.0.0:0", "192.0.2.1:9092")
        }
    else:
        values = {"listen": "0.0.0.0:0", "advertised": "192.0.2.1:9092"} | values
    given = settings(ops__listen="", **values)
    results = [item.said for what, item in bad(start(given)).items() if what.startswith("listener ")]
    assert [result[: len(said)] for result in results] == ([said] if said else [])


def test_an_address_that_this_machine_does_not_have() -> None:
    result = bad(addresses.examine(settings(listen="192.0.2.1:0", ops__listen="")))
    assert "no interface of this machine" in result["listen"].said


@pytest.mark.parametrize(
    ("values", "level", "said"),
    [
        ({"listen": "0.0.0.0:0"}, Level.ERROR, "not an address that clients can connect to"),
        ({"listen": "127.0.0.1:0", "advertised": "no-such-host.invalid:1"}, Level.ERROR, "no-such-host"),
        ({"listen": "0.0.0.0:0", "advertised": "localhost:9092"}, Level.WARNING, "to themselves"),
    ],
    ids=["none", "name", "loopback"],
)
def test_an_advertised_address_that_leads_nowhere(values: dict[str, str], level: Level, said: str) -> None:
    given = settings(ops__listen="", **values)
    result = bad(iter((*start(given), *addresses.examine(given))))
    (finding,) = (item for what, item in result.items() if what.startswith("advertised"))
    assert finding.level is level
    assert said in finding.said


@pytest.mark.slow
def test_an_advertised_address_that_does_not_answer_while_the_broker_runs(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{processes.free_port()}"
    with korvet_broker(tmp_path, "--advertised", nobody, workers=1) as broker:
        host, port = broker.address
        flags = ("--listen", f"{host}:{port}", "--ops-listen", "", "--data-dir", str(broker.data_dir))
        code, result = doctor(*flags, "--advertised", nobody)
        assert code == 1
        assert "does not answer" in result["advertised (PLAINTEXT)"]["finding"]


@pytest.mark.parametrize(
    ("most", "hard", "level"),
    [
        ("2147483647", resource.RLIM_INFINITY, Level.OK),
        ("2147483647", 1_048_576, Level.OK),
        ("2147483647", 4096, Level.WARNING),
        ("2000", 4096, Level.OK),
        ("4000", 4096, Level.ERROR),
    ],
)
def test_descriptors_for_the_connections_that_are_allowed(most: str, hard: int, level: Level) -> None:
    assert machine.open_files(settings(max__connections=most), hard).level is level


def _few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))


@pytest.mark.slow
def test_the_limit_of_descriptors_is_that_of_the_process(tmp_path: Path) -> None:
    flags = ("--set", "max.connections=1000", "--data-dir", str(tmp_path / "none"), "--listen", "127.0.0.1:0")
    done = subprocess.run(
        [*KORVET, "--json", *flags, "--ops-listen", ""],
        stdout=subprocess.PIPE,
        preexec_fn=_few_files,
        check=False,
    )
    result = {row["check"]: row for row in json.loads(done.stdout)}
    assert (done.returncode, result["open files"]["level"]) == (1, "error")
    assert result["open files"]["finding"].startswith("512 ")


def test_settings_of_the_kernel(tmp_path: Path) -> None:
    file, missing = tmp_path / "setting", tmp_path / "missing"
    for paths, bad_text, good_text in (
        ((), "128\n", "4096\n"),
        ((file, missing), "[always] madvise never\n", "always [madvise] never\n"),
        ((missing, file), "0\n", "1\n"),
    ):
        for text, level in ((bad_text, Level.WARNING), (good_text, Level.OK)):
            file.write_text(text)
            findings = machine.kernel_memory(*paths) if paths else machine.backlog(file)
            assert [finding.level for finding in findings] == [level]
    assert [*machine.backlog(missing), *machine.kernel_memory(missing, missing)] == []


def test_a_data_directory_without_room_or_none_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert machine.disk(settings(data__dir=str(tmp_path / "file"))).level is Level.ERROR
    assert machine.disk(settings(data__dir=str(tmp_path / "file/below"))).level is Level.ERROR
    large = settings(data__dir=str(tmp_path / "new"), embedded__disk__max__bytes=str(2**60))
    assert "less than embedded.disk.max.bytes" in machine.disk(large).said
    assert not (tmp_path / "new").exists()


def test_more_workers_than_cores() -> None:
    assert "workers" in bad(machine.examine(settings(workers=str((os.cpu_count() or 1) + 1))))
    assert "workers" not in bad(machine.examine(settings(workers="1")))


def lake_problem(of: Settings) -> str:
    return Lake.of(of.lake_path, of.lake_storage_options).write_problem()


def test_a_lake_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def result(path: str) -> dict[str, Finding]:
        # Without archiving, which needs Java.
        chosen = settings(lake__path=str(tmp_path / path), lake__interval__ms="0")
        return bad(settings_checks.examine_lake(chosen, lake_problem))

    assert result("file/lake")["lake.path"].level is Level.ERROR
    assert result("lake") == {}
    assert list((tmp_path / "lake").iterdir()) == []
    assert list(settings_checks.examine_lake(settings(), lake_problem)) == []


def test_a_lake_in_a_store_that_does_not_answer() -> None:
    options = (
        f"AWS_ENDPOINT_URL=http://127.0.0.1:{processes.free_port()},AWS_ALLOW_HTTP=true,AWS_REGION=x,"
        "AWS_ACCESS_KEY_ID=x,AWS_SECRET_ACCESS_KEY=secret-key,max_retries=0"
    )
    chosen = settings(lake__path="s3://bucket/lake", lake__storage__options=options, lake__interval__ms="0")
    result = bad(settings_checks.examine_lake(chosen, lake_problem))
    assert result["lake.path"].level is Level.ERROR
    assert "secret-key" not in result["lake.path"].said


def test_a_lake_without_java(tmp_path: Path) -> None:
    flags = ("--set", f"lake.path={tmp_path / 'lake'}", "--listen", "127.0.0.1:0", "--ops-listen", "")
    nowhere = {"JAVA_HOME": str(tmp_path)}
    code, result = doctor(*flags, "--data-dir", str(tmp_path / "none"), environ=nowhere)
    assert code == 1
    assert "Java" in result["lake"]["finding"]


BEYOND_LOOPBACK = {"ops__listen": "0.0.0.0:9093"}


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"keeper__lease__ms": "5000"}, "keeper.lease.ms"),
        ({"offset__sequence__bits": "12"}, "offset.sequence.bits"),
        ({"broker__lease__ms": "100"}, "broker.lease.ms"),
        ({"message__max__bytes": "200000000"}, "message.max.bytes"),
        ({"message__max__bytes": "20000000"}, "message.max.bytes"),
        ({"ops__listen": "0.0.0.0:9093"}, "ops.listen"),
        ({"redis__url": "redis+sentinel://u:p@sentinel.example/m"}, "redis.url"),
        (BEYOND_LOOPBACK | {"console__read__token__file": "/etc/token"}, "ops.ssl.keystore.location"),
        (
            BEYOND_LOOPBACK | {"console__read__token__file": "/etc/token", "console__enable": "false"},
            "ops.ssl.keystore.location",
        ),
        ({"redis__url": "redis://redis.example"}, "redis.url"),
    ],
)
def test_settings_that_look_like_a_slip(values: dict[str, str], what: str) -> None:
    assert list(bad(settings_checks.examine(settings(**values)))) == [what]


@pytest.mark.parametrize(
    "values",
    [
        {},
        BEYOND_LOOPBACK | {"console__enable": "false", "console__token__file": "/etc/token"},
        BEYOND_LOOPBACK
        | {"console__read__token__file": "/etc/token", "ops__ssl__keystore__location": "/etc/pem"},
        {"ops__listen": "127.0.0.1:9093", "console__read__token__file": "/etc/token"},
        {"redis__url": "redis://:p@redis.example"},
        {"redis__url": "redis://127.0.0.1"},
        {"offset__sequence__bits": "11"},
    ],
)
def test_settings_that_make_sense(values: dict[str, str]) -> None:
    assert [item.level for item in settings_checks.examine(settings(**values))] == [Level.OK]


def test_a_configuration_that_is_none_is_a_mistake_and_no_finding() -> None:
    assert "no.such" in refused("doctor", "--set", "no.such=1")


@pytest.mark.parametrize("name", ["console.token.file", "console.read.token.file"])
def test_a_file_without_a_token_or_that_all_can_read_is_named(tmp_path: Path, name: str) -> None:
    assert list(settings_checks.examine_console(Settings())) == []
    file = tmp_path / "token"

    def said(level: Level) -> str:
        given = settings(**{name.replace(".", "__"): str(file)})
        [result] = settings_checks.examine_console(given)
        assert (result.what, result.level) == (name, level)
        assert bool(result.advice) == (level is not Level.OK)
        return result.said

    assert "No such file" in said(Level.WARNING)
    file.write_text("short\n")
    assert "this one has 5" in said(Level.WARNING)
    file.write_text("0123456789abcdef\n")
    file.chmod(0o644)
    assert "every user" in said(Level.WARNING)
    file.chmod(0o600)
    assert str(file) in said(Level.OK)


def test_configs_of_the_consoles_client_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    given = settings(console__client__config=str(file))
    assert "cannot read" in bad(settings_checks.examine_console(given))["console.client.config"].said
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\n")
    said = bad(settings_checks.examine_console(given))["console.client.config"].said
    assert said.startswith("PLAIN needs sasl.username and sasl.password")
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password=b\n"
    )
    assert list(settings_checks.examine_console(given)) == []
