"""Who may read by the console, and how the console itself logs in to a broker that asks it to."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.config.settings import Settings
from korvet.config.values import Address
from korvet.server.ops import broker_access
from korvet.server.supervisor.ports import Bound
from tests.support.broker import Broker, steady_broker
from tests.support.console import TOKEN, Caller

pytestmark = pytest.mark.slow

READ_TOKEN = "another token for tests, to read"
WRONG = "what-somebody-guesses"
PASSWORD = "the-password-of-the-console-in-this-test"
EVERY_DATA = ("/", "/console/app.js", "/api/overview", "/api/topics", "/api/nothing", "/metrics", "/nothing")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a directory with tokens, users and the console's login."""
    directory = tmp_path_factory.mktemp("files")
    (directory / "token").write_text(TOKEN)
    (directory / "read-token").write_text(f"{READ_TOKEN}\n")
    write_login(directory)
    return directory


def write_login(directory: Path) -> None:
    """Write the files by which broker and console know the console's user."""
    (directory / "users.toml").touch(0o600)
    (directory / "users.toml").write_text(f'console = "{PASSWORD}"\n')
    (directory / "client.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f"sasl.username=console\nsasl.password={PASSWORD}\n"
    )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Iterator[Broker]:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.plain.users.file": files / "users.toml",
        "console.client.config": files / "client.properties",
        "console.token.file": files / "token",
        "console.read.token.file": files / "read-token",
    }
    directory = tmp_path_factory.mktemp("secured")
    with steady_broker(directory, settings=settings, listen=(), workers=1) as running:
        yield running
        for secret in (TOKEN, READ_TOKEN, PASSWORD):
            assert secret not in running.log() + running.output()


def basic(password: str, user: str = "anybody") -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.mark.parametrize("path", EVERY_DATA)
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        basic(READ_TOKEN[:-1]),
        basic("", READ_TOKEN),
        "Basic",
        "Basic !",
        f"Basic {READ_TOKEN}",
        f"Digest {READ_TOKEN}",
    ],
)
def test_nothing_is_read_without_a_token(secured: Broker, path: str, authorization: str | None) -> None:
    given = {} if authorization is None else {"Authorization": authorization}
    reply = Caller(secured.ops_address).call("GET", path, **given)
    assert reply.status == 401
    assert reply.headers["www-authenticate"] == 'Basic realm="korvet", charset="UTF-8"'
    assert reply.body == b"Unauthorized: reading requires the token in console.read.token.file\n"


def test_a_wrong_bearer_makes_no_browser_ask_for_a_password_and_probes_are_open(secured: Broker) -> None:
    caller = Caller(secured.ops_address)
    reply = caller.call("GET", "/api/session", Authorization="Bearer wrong")
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert [caller.get(path).status for path in ("/healthz", "/readyz")] == [200, 200]


@pytest.mark.parametrize("token", [READ_TOKEN, TOKEN])
@pytest.mark.parametrize("path", ["/", "/api/topics", "/api/groups", "/metrics"])
def test_both_tokens_read_in_both_schemes(secured: Broker, token: str, path: str) -> None:
    caller = Caller(secured.ops_address)
    for authorization in (basic(token), f"bearer {token}"):
        assert caller.call("GET", path, Authorization=authorization).status == 200


def test_a_wrong_token_is_in_the_audit_log_and_counted(secured: Broker) -> None:
    caller = Caller(secured.ops_address)

    def counted() -> float:
        page = caller.call("GET", "/metrics", Authorization=basic(READ_TOKEN)).body.decode()
        sample = 'korvet_authentications_total{listener="OPS.LISTEN",mechanism="token",outcome="refused"} '
        return sum(float(line.removeprefix(sample)) for line in page.splitlines() if line.startswith(sample))

    before = counted()
    attempts = {
        "/api/a": basic(WRONG),
        "/api/b?token=1": f"Bearer {WRONG}",
        "/api/session": f"Bearer {READ_TOKEN}",  # which checks the token for changes
    }
    for path, authorization in attempts.items():
        assert caller.call("GET", path, Authorization=authorization).status == 401
    assert caller.get("/api/without-a-token").status == 401
    assert counted() - before == len(attempts)
    lines = [line for line in secured.log().splitlines() if "authentication refused" in line]
    said = "principal=User:ANONYMOUS peer=127.0.0.1 listener=OPS.LISTEN mechanism=token path="
    assert [line.partition(said)[2] for line in lines[-len(attempts) :]] == [
        "/api/a",
        "/api/b",
        "/api/session",
    ]
    assert WRONG not in secured.log()


def test_only_the_token_for_changes_changes_and_only_as_bearer(secured: Broker, name: str) -> None:
    caller = Caller(secured.ops_address)
    for authorization in (basic(TOKEN), basic(READ_TOKEN), f"Bearer {READ_TOKEN}"):
        reply = caller.call("POST", "/api/topics", {"name": name}, Authorization=authorization)
        assert reply.status == 401
        assert b"changes require" in reply.body
    body = {"name": name, "partitions": 1}
    created = caller.call("POST", "/api/topics", body, Authorization=f"Bearer {TOKEN}")
    assert created.status == 200, created
    listed = caller.call("GET", "/api/topics", Authorization=basic(READ_TOKEN))
    assert name in [item["name"] for item in listed.data["topics"]]


def test_a_token_file_that_cannot_be_read_lets_nobody_read(secured: Broker, files: Path) -> None:
    caller = Caller(secured.ops_address)
    for name, unknown, other in (("read-token", 503, TOKEN), ("token", 401, READ_TOKEN)):
        before = (files / name).read_text()
        (files / name).write_text("short")
        try:
            for given in ({}, {"Authorization": basic("short")}):
                assert caller.call("GET", "/metrics", **given).status == unknown
            assert caller.call("GET", "/metrics", Authorization=basic(other)).status == 200
        finally:
            (files / name).write_text(before)


LISTENERS = [
    Bound("PLAINTEXT", Address("10.1.2.3", 9092), Address("broker.example", 9092)),
    Bound("SASL_PLAINTEXT", Address("10.1.2.3", 9093), Address("broker.example", 9093)),
    Bound("INSIDE", Address("0.0.0.0", 9094), Address("inside.example", 9094)),  # noqa: S104 - none is bound
]
PROTOCOLS = "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,INSIDE:"


@pytest.mark.parametrize(
    ("inside", "config", "address", "name"),
    [
        ("PLAINTEXT", "", Address("127.0.0.1", 9094), "inside.example"),
        ("SASL_SSL", "", Address("10.1.2.3", 9092), "broker.example"),
        ("PLAINTEXT", "client.properties", Address("10.1.2.3", 9093), "broker.example"),
        ("SASL_PLAINTEXT", "client.properties", Address("127.0.0.1", 9094), "inside.example"),
    ],
)
def test_a_listener_with_the_consoles_protocol_is_chosen_on_loopback_first(
    files: Path, inside: str, config: str, address: Address, name: str
) -> None:
    settings = Settings(
        listener_security_protocol_map=PROTOCOLS + inside,
        console_client_config=str(files / config) if config else "",
    )
    access = broker_access(settings, LISTENERS)
    assert (access.problem, access.address, access.security.server_name) == ("", address, name)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            None,
            "no listener is PLAINTEXT: it connects by a listener that is, or as console.client.config says",
        ),
        (
            "security.protocol=SSL\n",
            "no listener is SSL: console.client.config {file} has this security.protocol",
        ),
        ("security.protocol=TLS\n", "console.client.config: security.protocol must be one of PLAINTEXT, "),
    ],
)
def test_what_a_console_without_a_listener_lacks_is_said(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    file = tmp_path / "client.properties"
    if content is not None:
        file.write_text(content)
    settings = Settings(console_client_config=str(file) if content else "")
    assert broker_access(settings, LISTENERS[1:2]).problem.startswith(problem.format(file=file))


def test_a_console_that_cannot_connect_says_why(tmp_path: Path) -> None:
    settings = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}
    with steady_broker(tmp_path, settings=settings, listen=(), workers=1) as broker:
        caller = Caller(broker.ops_address)
        reply = caller.get("/api/topics")
        assert reply.status == 502
        assert "no listener is PLAINTEXT" in reply.data["error"]
        assert caller.get("/api/overview").status == 200
        assert "the console cannot connect to its broker" in broker.log()
