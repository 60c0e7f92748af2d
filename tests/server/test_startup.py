"""What `korvet serve` refuses to start on: one clear line on stderr, a non-zero exit, nothing left running."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import redis

from korvet.config.listeners import Listener
from korvet.config.settings import Settings
from korvet.config.values import Address, parse_address
from korvet.errors import ConfigError
from korvet.server import embedded, refusals
from korvet.server.supervisor import ports, redis_check
from korvet.server.supervisor.ports import Bound
from tests.support import ops, processes
from tests.support.broker import START_SECONDS_MAX, echo_broker
from tests.support.processes import free_port
from tests.support.redis_cluster import TLS
from tests.support.redis_servers import DurableServer, embedded_server, master, servers_of
from tests.support.secured_redis import tls_front
from tests.support.sentinels import Sentinel


def refusal(directory: Path, *values: str, data: Path | None = None) -> str:
    """Return the one line that a broker with these settings ends with."""
    with echo_broker(directory / "refused", *values, data_dir=data, ready=False) as broker:
        assert broker.process.wait(START_SECONDS_MAX) == 2
        assert not processes.children(broker.pid)
        assert broker.output() == ""
        lines = [
            line for line in broker.log().splitlines() if " INFO " not in line and " WARNING " not in line
        ]
        assert len(lines) == 1, broker.log()
        return lines[0]


def documented_acl() -> list[str]:
    """Return the rules of the user that docs/redis.md proposes, but for name and password."""
    page = (Path(__file__).parents[2] / "docs" / "redis.md").read_text(encoding="utf-8")
    rules = page.split("    ACL SETUSER korvet on >secret ")[1].split("\n\n")[0]
    return rules.replace("\\\n", " ").split()


def allow(admin: Any, *rules: str) -> None:
    admin.execute_command("ACL", "SETUSER", "u", "reset", "on", ">p", *rules)


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.slow
def test_a_start_says_that_producers_are_refused_and_that_a_data_directory_has_little_room(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "file").write_bytes(bytes(3_000_000))
    refused = "the data directory has 3[0-9]{6} bytes, and embedded.disk.max.bytes is 1048576"
    little_room = (
        f"the data directory has little room path={data} free_bytes=[0-9]+ needed_bytes=99[0-9]{{13}}"
    )
    for limit, announced, logged in (
        (2**20, f"  producers   refused: {refused}\n", ""),
        (10**15, "", little_room),
    ):
        values = (f"embedded.disk.max.bytes={limit}",)
        with echo_broker(tmp_path / str(limit), *values, workers=1, data_dir=data) as broker:
            producers = json.loads(ops.page(broker, "/readyz"))["producers"]
            assert re.fullmatch(f"refused: {refused}" if announced else "ok", producers)
            assert re.search(announced, broker.output())
            assert ("  producers " in broker.output()) == bool(announced)
            assert re.search(logged, broker.log())
            assert ("little room" in broker.log()) == bool(logged)


@pytest.mark.parametrize(
    ("info", "settings", "reason"),
    [
        (
            {"used_memory": "96", "maxmemory": "100"},
            {},
            "node has 96 bytes in memory, and its maxmemory is 100",
        ),
        ({"used_memory": "94", "maxmemory": "100"}, {}, ""),
        ({"aof_last_write_status": "err"}, {}, "node could not write its append-only file"),
        ({"role": "slave"}, {}, "node is a replica, and takes no writes"),
        ({"role": "master"}, {"replicas": 1}, "acks=all needs 1 replicas, and node has 0 in sync"),
        ({"role": "master", "slave0": "state=online,lag=1"}, {"min_insync_replicas": 2}, ""),
        ({"role": "master", "slave0": "state=online,lag=11"}, {"min_insync_replicas": 2}, "has 0 in sync"),
        ({}, {"replicas": 1}, ""),  # the user may not ask for INFO
    ],
)
def test_producers_are_refused_for_what_a_server_lacks(
    info: dict[str, str], settings: dict[str, Any], reason: str
) -> None:
    reasons = refusals.by_server(info, Settings(**settings), "node")
    assert len(reasons) == bool(reason)
    assert reason in "".join(reasons)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["listen", "ops.listen"])
def test_a_port_in_use_is_refused_and_leaves_no_data_directory(
    tmp_path: Path, taken: str, setting: str
) -> None:
    line = refusal(tmp_path, f"{setting}={taken}", data=tmp_path / "data")
    assert line == f"korvet: {setting} {taken}: the port is in use by another process"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("listen", "ops"),
    [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "localhost"), ("0.0.0.0", "127.0.0.1"), ("::1", "::")],  # noqa: S104 - an address to listen at
)
def test_one_port_for_clients_and_for_ops_is_called_so(listen: str, ops: str) -> None:
    with ports.reserve("listen ", Address(listen, 0)) as reservation:
        address = Address(ops, reservation.address.port)
        with pytest.raises(ConfigError) as caught:
            ports.bind_alone("ops.listen ", address, [reservation])
        held = reservation.address
    assert str(caught.value) == f"ops.listen {address}: listen {held} has that port: give each its own"


def test_one_port_on_two_addresses_is_taken_for_clients_and_ops() -> None:
    with ports.reserve("listen ", Address("127.0.0.1", 0)) as reservation:
        address = Address("127.0.0.2", reservation.address.port)
        with ports.bind_alone("ops.listen ", address, [reservation]) as other:
            assert other.getsockname() == address


@pytest.mark.slow
def test_the_port_of_a_running_broker_is_refused_although_its_workers_share_it(
    tmp_path: Path, redis_url: str
) -> None:
    with echo_broker(tmp_path, f"redis.url={redis_url}") as broker:
        line = refusal(tmp_path, f"listen={broker.bootstrap}", f"redis.url={redis_url}")
        assert "the port is in use" in line


@pytest.mark.slow
def test_the_data_directory_of_a_running_broker_is_refused_with_its_owner(tmp_path: Path) -> None:
    with echo_broker(tmp_path) as broker:
        line = refusal(tmp_path, data=broker.data_dir)
        assert f"is in use by process {broker.pid}" in line
        assert len(broker.worker_pids()) == 2


def complaint(url: str) -> str:
    """Return why a Redis is not taken, which has neither password."""
    with pytest.raises(ConfigError) as caught:
        redis_check.check(Settings(redis_url=url))
    assert "geheim" not in str(caught.value)
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "login", "reason"),
    [
        ("CONFIG SET maxmemory-policy allkeys-lru", "", "is allkeys-lru, which would delete topics"),
        ("CONFIG SET requirepass right", ":geheim@", "invalid username-password pair"),
        ("CONFIG SET requirepass right", "", "it requires a password: give redis://:PASSWORD@HOST:PORT"),
        ("REPLICAOF 127.0.0.1 1", "", "this is a replica of 127.0.0.1:1, which takes no writes"),
        (
            "ACL SETUSER k on >geheim ~* &* +@all -info -xadd",
            "k:geheim@",
            "permissions are missing: INFO, XADD",
        ),
    ],
)
def test_a_redis_that_cannot_be_used_is_refused_with_the_reason(
    command: str, login: str, reason: str
) -> None:
    with embedded_server() as url:
        with redis.Redis.from_url(url) as client:
            execute: Any = client.execute_command
            execute(*command.split())
        assert reason in complaint(url.replace("://", f"://{login}", 1))


@pytest.mark.slow
def test_a_node_of_a_cluster_without_a_port_is_refused_with_the_url_that_is_meant() -> None:
    with embedded_server("--cluster-enabled", "yes") as url:
        reason = "is a node of a Redis Cluster, not a single server: give redis+cluster://HOST:PORT"
        assert reason in complaint(url)


@pytest.mark.slow
def test_an_address_of_something_else_is_refused_with_what_answers_there() -> None:
    plain_port, context = free_port(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    with (
        embedded_server("--port", str(plain_port)) as url,
        tls_front(url.removeprefix("unix://"), context) as tls_port,
        HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as http,
        socket.create_server(("127.0.0.1", 0)) as mute,
    ):
        Thread(target=http.serve_forever, daemon=True).start()
        ports = (http.server_port, tls_port, plain_port, mute.getsockname()[1])
        web, tls, plain, silent = (f"127.0.0.1:{port}" for port in ports)
        cluster = f": {plain} is a single server, not a node of a Redis Cluster"
        nothing = (
            f": {silent} takes connections and answers nothing: it is not Redis, or it is stopped or busy"
        )
        for asked, said in (
            (f"redis://geheim@{web}", f": {web} is an HTTP server, not Redis"),
            (f"rediss://geheim@{web}", f": {web} is an HTTP server, not Redis"),
            (f"redis://{tls}", f": {tls} takes TLS only: give rediss in place of redis"),
            (f"rediss://{plain}", f": {plain} takes no TLS: give redis in place of rediss"),
            (f"redis://{plain}/99", f" {plain}: it has no database 99"),
            (f"redis://{silent}", nothing),
            (f"rediss://{silent}", nothing),
            (f"redis+sentinel://{silent}/mymaster", nothing),
            (f"redis+cluster://{silent},{plain}", f"{cluster}: give redis://{plain}"),
        ):
            assert complaint(asked) == f"redis.url{said}"
        http.shutdown()


def test_a_redis_that_is_not_there_is_refused_in_the_systems_words(tmp_path: Path) -> None:
    socket_path = f"{tmp_path}/none.sock"
    assert complaint(f"unix://{socket_path}") == f"redis.url {socket_path}: No such file or directory"
    assert complaint("redis://user:geheim@127.0.0.1:1/0") == "redis.url 127.0.0.1:1: Connection refused"


@pytest.mark.slow
@pytest.mark.parametrize("ended", ["supervisor", "preparation"])
def test_a_start_that_waits_for_redis_can_be_ended(tmp_path: Path, ended: str) -> None:
    with DurableServer() as server:
        server.freeze()
        with echo_broker(tmp_path, f"redis.url={server.url}", ready=False) as broker:
            processes.wait_until(lambda: len(processes.children(broker.pid)) == 1, "it prepares Redis")
            if ended == "supervisor":
                broker.process.send_signal(signal.SIGTERM)
                assert broker.process.wait(START_SECONDS_MAX) == 0
                assert "stopped while starting" in broker.log()
            else:
                processes.kill(processes.children(broker.pid).pop())
                assert broker.process.wait(START_SECONDS_MAX) == 2
                assert "the process that checks Redis ended without an answer" in broker.log()
            assert broker.output() == ""


@pytest.mark.slow
def test_an_embedded_server_that_loads_its_data_reports_how_far_it_is() -> None:
    slow = ("--key-load-delay", "1000", "--rdbcompression", "no")
    often = ("--loading-process-events-interval-bytes", "1024", "--enable-debug-command", "yes")
    with embedded_server(*slow, *often) as url, redis.Redis.from_url(url) as client:
        path = Path(url.removeprefix("unix://"))
        debug: Any = client.execute_command
        debug("DEBUG", "POPULATE", 1000, "key", 1024)
        assert embedded._loading(path) == ""
        with ThreadPoolExecutor(1) as threads:
            reloaded = threads.submit(debug, "DEBUG", "RELOAD")
            processes.wait_until(lambda: embedded._loading(path), "it loads its data")
            result = embedded._loading(path)
            reloaded.result()
        assert re.fullmatch(r"[0-9.]+ %, about [0-9]+ s to go", result or "")
        assert embedded._loading(path) == ""
    assert embedded._loading(path) is None


@pytest.mark.slow
def test_a_url_of_another_kind_is_refused_with_the_one_that_is_meant(tmp_path: Path) -> None:
    with master() as watched, closing(Sentinel(watched.port)) as sentinel:
        server, asked = f"127.0.0.1:{watched.port}", sentinel.address
        instead = f"give redis+sentinel://{asked}/mymaster"
        no_sentinel = f"{server} is a single server, not a Sentinel: give redis://{server}"
        for url, complaint in (
            (f"redis://{asked}", f"{asked} is a Sentinel, not a single server: {instead}"),
            (f"redis+cluster://{asked}", f"{asked} is a Sentinel, not a node of a Redis Cluster: {instead}"),
            (f"redis+sentinel://:s3cret@{asked},{server}/mymaster", no_sentinel),
        ):
            with pytest.raises(ConfigError) as caught:
                redis_check.check_kind(Settings(redis_url=url))
            assert str(caught.value) == f"redis.url: {complaint}"
        assert refusal(tmp_path, f"redis.url=redis://{asked}").endswith(f"redis+sentinel://{asked}/mymaster")


@pytest.mark.slow
def test_a_sentinel_that_refuses_to_announce_a_failover_is_refused() -> None:
    with master() as watched, closing(Sentinel(watched.port)) as sentinel:
        sentinel.client.execute_command("ACL SETUSER default -subscribe")
        url = f"redis+sentinel://{sentinel.address}/mymaster"
        with pytest.raises(ConfigError, match=f"the Sentinel at {sentinel.address} refuses: .*subscribe"):
            redis_check.check_kind(Settings(redis_url=url))


@pytest.mark.slow
def test_the_master_is_found_by_sentinels_that_answer(tmp_path: Path) -> None:
    with master() as watched, closing(Sentinel(watched.port)) as sentinel:
        url = f"redis+sentinel://127.0.0.1:{free_port()},{sentinel.address}/mymaster"
        facts = redis_check.check(Settings(redis_url=url))
        assert facts.name in {"Redis", "Valkey"}
        prepared = redis_check.prepare(Settings(redis_url=url))
        assert watched.client.get("korvet:cluster-id") == prepared.cluster_id.encode()
        dead = f"redis+sentinel://127.0.0.1:{free_port()}/mymaster"
        assert refusal(tmp_path, f"redis.url={dead}").endswith("Connection refused")
        unknown = f"redis+sentinel://{sentinel.address}/other"
        assert refusal(tmp_path, f"redis.url={unknown}").endswith(f"{sentinel.address} knows no master other")


@pytest.mark.slow
def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        line = refusal(tmp_path, data=path)
        assert line == f"korvet: data.dir {path}: it, or what is above it, is a file and no directory"


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ("-spublish", "a permission is missing: SPUBLISH$"),
        ("-xsetid -xadd -multi -ssubscribe -wait", "missing: XADD, XSETID, MULTI, SSUBSCRIBE, WAIT$"),
        ("-evalsha", "a permission is missing: EVALSHA$"),
        ("resetchannels", "SPUBLISH"),
        ("resetkeys ~korvet:*", "No permissions to access a key|access one of the keys"),
    ],
)
def test_a_redis_user_who_may_do_too_little_is_refused_with_what_is_missing(
    raw_redis: redis.Redis, redis_url: str, rules: str, named: str
) -> None:
    allow(raw_redis, "~*", "&*", "+@all", *rules.split())
    with pytest.raises(ConfigError, match=named):
        redis_check.prepare(Settings(redis_url=redis_url.replace("://", "://u:p@", 1), replicas=1))
    assert raw_redis.keys() == []


def test_a_redis_user_limited_to_the_namespace_is_enough(raw_redis: redis.Redis, redis_url: str) -> None:
    # The list that docs/redis.md gives.
    allow(raw_redis, *documented_acl())
    login = redis_url.replace("://", "://u:p@", 1)
    settings = Settings(redis_url=login, replicas=1)
    redis_check.check(settings)
    redis_check.prepare(settings)
    allow(raw_redis, "~*", "&*", "+@all", "-wait")
    redis_check.prepare(Settings(redis_url=login))


def test_a_redis_whose_memory_is_full_is_taken_again(raw_redis: redis.Redis, redis_url: str) -> None:
    settings = Settings(redis_url=redis_url)
    cluster_id = redis_check.prepare(settings).cluster_id
    raw_redis.config_set("maxmemory", 1)
    try:
        assert redis_check.prepare(settings).cluster_id == cluster_id
    finally:
        raw_redis.config_set("maxmemory", 0)


@pytest.mark.slow
def test_waiting_for_replicas_of_the_embedded_server_is_refused(tmp_path: Path) -> None:
    assert "replicas: " in refusal(tmp_path, "replicas=1")


@pytest.mark.slow
def test_a_redis_without_an_append_only_file_is_taken_with_a_warning(tmp_path: Path, redis_url: str) -> None:
    with echo_broker(tmp_path, f"redis.url={redis_url}") as broker:
        assert " WARNING supervisor appendonly is off: " in broker.log()
        assert "appendonly is off" in broker.output()
        assert not broker.data_dir.exists()


@pytest.mark.parametrize(
    ("info", "name"),
    [
        ({"redis_version": "6.2.14"}, "Redis 6.2.14 is too old: 7.0"),
        ({"redis_version": "7.2.4", "valkey_version": "7.1.9"}, "Valkey 7.1.9 is too old: 7.2"),
        ({}, r"\(no version\) is too old"),
    ],
)
def test_an_old_server_is_refused_by_name_and_version(info: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        redis_check.judge(info)


def test_scripts_and_cluster_id_are_in_redis_before_the_first_worker(
    redis_url: str, raw_redis: redis.Redis
) -> None:
    settings = Settings(redis_url=redis_url)
    first = redis_check.prepare(settings)
    assert len(first.cluster_id) == 22
    assert redis_check.prepare(settings).cluster_id == first.cluster_id
    assert raw_redis.get("korvet:cluster-id") == first.cluster_id.encode()
    assert all(server.info("memory")["number_of_cached_scripts"] for server in servers_of(raw_redis))


def test_a_given_cluster_id_is_kept_and_another_refused(redis_url: str) -> None:
    # Also by a broker whose settings have none: all on one Redis are one cluster.
    for given in ("mine", ""):
        assert redis_check.prepare(Settings(redis_url=redis_url, cluster_id=given)).cluster_id == "mine"
    wrong = r"cluster\.id is other, but that of this Redis \(key korvet:cluster-id\) is mine"
    with pytest.raises(ConfigError, match=wrong):
        redis_check.prepare(Settings(redis_url=redis_url, cluster_id="other"))
    assert redis_check.prepare(Settings(redis_url=redis_url)).cluster_id == "mine"


def test_a_port_is_free_again_although_connections_of_an_earlier_broker_linger() -> None:
    reservation = ports.reserve("listen ", Address("127.0.0.1", 0))
    listener = socket.socket()
    ports.prepare_shared(listener)
    listener.bind(reservation.address)
    listener.listen()
    with socket.create_connection(reservation.address) as client:
        # The side that closes first keeps the connection in TIME_WAIT.
        listener.accept()[0].close()
        assert client.recv(1) == b""
    listener.close()
    reservation.close()
    ports.reserve("listen ", reservation.address).close()


def test_a_reserved_port_takes_no_connection() -> None:
    with (
        ports.reserve("listen ", Address("127.0.0.1", 0)) as reservation,
        pytest.raises(ConnectionRefusedError),
    ):
        socket.create_connection(reservation.address)


def test_ipv6_and_localhost_are_resolved() -> None:
    with ports.reserve("listen ", Address("::1", 0)) as reservation:
        assert reservation.address.host == "::1"
    with ports.reserve("listen ", Address("localhost", 0)) as reservation:
        assert reservation.address.host == "127.0.0.1"


WILDCARD = Listener("PLAINTEXT", Address("0.0.0.0", 9092))  # noqa: S104 - the case under test


def test_a_wildcard_is_not_advertised() -> None:
    with pytest.raises(ConfigError, match=r"listen 0\.0\.0\.0:9092 .* set advertised "):
        ports.bind_listeners(Settings(), [WILDCARD])
    [result] = ports.bind_listeners(Settings(advertised="broker:9"), [WILDCARD])
    assert result == Bound("PLAINTEXT", WILDCARD.address, Address("broker", 9))


def test_a_named_wildcard_is_not_advertised_either() -> None:
    two = [WILDCARD._replace(name="INSIDE"), WILDCARD._replace(name="OUTSIDE")]
    settings = Settings(
        listeners="INSIDE://0.0.0.0:1,OUTSIDE://0.0.0.0:2",
        listener_security_protocol_map="INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        advertised_listeners="INSIDE://inside:9",
    )
    with pytest.raises(
        ConfigError, match=r"listeners OUTSIDE://0\.0\.0\.0:9092 .* set advertised\.listeners too$"
    ):
        ports.bind_listeners(settings, two)


def test_a_port_in_use_is_refused_by_its_listeners_name_and_the_others_are_freed(taken: str) -> None:
    settings = Settings(listeners=f"INSIDE://127.0.0.1:{processes.free_port()},OUTSIDE://{taken}")
    with pytest.raises(ConfigError) as caught, ExitStack() as cleanup:
        ports.reserve_listeners(settings, cleanup)
    assert str(caught.value) == f"listeners OUTSIDE://{taken}: the port is in use by another process"
    ports.reserve(
        "listen ", parse_address(settings.listeners.split(",")[0].removeprefix("INSIDE://"))
    ).close()


def test_the_port_of_any_listener_is_refused_to_ops() -> None:
    with ExitStack() as cleanup:
        held = ports.reserve_listeners(Settings(listeners="A://127.0.0.1:0,B://127.0.0.1:0"), cleanup)
        for name, item in held.items():
            with pytest.raises(ConfigError, match=f"listeners {name}://{item.address} has that port"):
                ports.bind_alone("ops.listen ", item.address, held.values())


def test_a_host_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"listen no-such-host\.invalid:1"):
        ports.reserve("listen ", Address("no-such-host.invalid", 1))


def test_a_deep_data_directory_gets_a_short_socket_that_stays_the_same(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    first = embedded.open_locked(deep)
    assert len(str(first.socket)) <= 107
    assert deep.stat().st_mode & 0o077 == 0
    first.close()
    second = embedded.open_locked(deep)
    assert second.socket == first.socket
    second.close()
    first.socket.parent.rmdir()


@pytest.mark.slow
def test_the_log_of_the_embedded_server_is_private(tmp_path: Path) -> None:
    log = tmp_path / "data" / "server.log"
    log.parent.mkdir()
    log.touch(0o644)
    for _ in range(2):
        with echo_broker(tmp_path, workers=1) as broker:
            assert log.stat().st_mode & 0o777 == 0o600
            broker.stop()
        log.unlink()


@pytest.mark.slow
def test_a_server_that_cannot_read_its_data_is_refused_with_its_last_words(tmp_path: Path) -> None:
    with echo_broker(tmp_path) as broker:
        broker.stop()
    (broker.data_dir / "appendonlydir" / "appendonly.aof.1.base.rdb").write_bytes(
        b"garbage of another program"
    )
    line = refusal(tmp_path, data=broker.data_dir)
    assert "the embedded server ended at its start: status 1" in line
    assert "server.log" in line
