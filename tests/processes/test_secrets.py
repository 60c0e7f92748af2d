"""No secret is in what a broker writes, answers, stores or shows of itself: known ones are planted and searched for."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from korvet.protocol.types import ResourceType, ScramMechanism
from tests.cli.commands import korvet
from tests.support import redis_servers
from tests.support.authority import Authority
from tests.support.broker import Broker, korvet_broker
from tests.support.identity_provider import AUDIENCE, Provider, identity_provider
from tests.support.processes import descendants, wait_until
from tests.support.sasl_client import SaslClient, set_password
from tests.support.topic_client import Client
from tests.support.wire_client import ClosedByBrokerError

SECRETS = {
    "password of Redis": "planted-password-of-redis",
    "password of Sentinels": "planted-password-of-sentinels",
    "password of SCRAM": "planted-password-of-scram",
    "password of PLAIN": "planted-password-of-plain",
    "wrong password": "planted-password-mistyped",
    "password of the key": "planted-password-of-the-key",
    "password of the key of ops": "planted-password-of-the-key-of-ops",
    "password of the console": "planted-password-of-the-console",
    "token of the console": "planted-token-of-the-console",
    "token of the console's readers": "planted-token-of-readers",
    "wrong token": "planted-token-mistyped",
    "key of the object store": "planted/key/of/the/object/store",
}
CRASHES = "crashes"
"""The name of a user whose login meets a fault of the broker."""
FAULTY = """
import sys
from korvet.cli.main import main
from korvet.security.plain import PlainUsers

check = PlainUsers.is_password

def faulty(users, user, password):
    message = b"\\0".join((user.encode(), password.encode()))
    assert user != "crashes", "a fault of the broker"
    return check(users, user, password)

PlainUsers.is_password = faulty
sys.exit(main())
"""


class Recording(SaslClient):
    answers: list[bytes] = []  # noqa: RUF012 - of all clients of the test

    def receive_frame(self) -> bytes:
        self.answers.append(super().receive_frame())
        return self.answers[-1]


class Planted(NamedTuple):
    """A broker with the secrets in its configuration, and where they came from."""

    broker: Broker
    directory: Path
    config: Path
    redis: Any
    provider: Provider
    authority: Authority
    secrets: dict[str, str]


def write_secrets(directory: Path) -> None:
    texts = {
        "users": f'carol = "{SECRETS["password of PLAIN"]}"\nconsole = "{SECRETS["password of the console"]}"\n',
        "token": SECRETS["token of the console"],
        "read token": SECRETS["token of the console's readers"],
        "redis": SECRETS["password of Redis"],
        "client": "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=console\n"
        f"sasl.password={SECRETS['password of the console']}\n",
    }
    for name, text in texts.items():
        (directory / name).touch(0o600)
        (directory / name).write_text(text)


@pytest.fixture(params=["redis.url", "redis.password.file"])
def planted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Planted]:
    """Run a broker that has the password of Redis in its URL or in a file, and all others in either test."""
    directory = tmp_path / "files"
    authority = Authority(directory)
    issued = authority.issue("/CN=broker", password=SECRETS["password of the key"])
    of_ops = authority.issue("/CN=broker", password=SECRETS["password of the key of ops"])
    write_secrets(directory)
    with contextlib.ExitStack() as stack:
        provider = stack.enter_context(identity_provider())
        master = stack.enter_context(redis_servers.master())
        master.client.config_set("requirepass", SECRETS["password of Redis"])
        at = f"127.0.0.1:{master.port}"
        settings = {
            **(
                {"redis.url": f"redis://:{SECRETS['password of Redis']}@{at}"}
                if request.param == "redis.url"
                else {"redis.url": f"redis://{at}", "redis.password.file": str(directory / "redis")}
            ),
            "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
            "sasl.plain.users.file": str(directory / "users"),
            "sasl.oauthbearer.jwks.endpoint.url": provider.url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "ssl.keystore.certificate.chain": issued.certificate.read_text(),
            "ssl.keystore.key": issued.key.read_text(),
            "ssl.key.password": SECRETS["password of the key"],
            "listener.name.ssl.ssl.key.password": SECRETS["password of the key"],
            "console.token.file": str(directory / "token"),
            "console.read.token.file": str(directory / "read token"),
            "console.client.config": str(directory / "client"),
            "ops.ssl.keystore.location": str(of_ops.store),
            "ops.ssl.key.password": SECRETS["password of the key of ops"],
            "lake.storage.options": f"AWS_ACCESS_KEY_ID=x,AWS_SECRET_ACCESS_KEY={SECRETS['key of the object store']}",
            "log.level": "debug",
            "connection.failed.authentication.delay.ms": 10,
        }
        config = directory / "korvet.toml"
        config.touch(0o600)
        config.write_text(toml(settings))
        program = directory / "faulty.py"
        program.write_text(FAULTY)
        broker = stack.enter_context(
            korvet_broker(
                tmp_path,
                "--config",
                str(config),
                workers=1,
                listen=(),
                program=(sys.executable, str(program), "serve"),
            )
        )
        secrets = SECRETS | {"the private key": issued.key.read_text().splitlines()[3]}
        yield Planted(broker, directory, config, master.client, provider, authority, secrets)


def toml(settings: Mapping[str, object]) -> str:
    return "".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in settings.items())


def sessions(planted: Planted) -> dict[str, str]:
    """Log in by every mechanism, rightly and wrongly, and once into a fault; returns the tokens that were used."""
    broker, provider, secrets = planted.broker, planted.provider, planted.secrets
    with Recording(broker.at("PLAINTEXT")) as admin:
        set_password(admin, "alice", secrets["password of SCRAM"], ScramMechanism.SCRAM_SHA_256)
        resources = [(ResourceType.BROKER, "0"), (ResourceType.TOPIC, "orders")]
        asked = [
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            for kind, name in resources
        ]
        described = admin.call(DescribeConfigsRequest(resources=asked, include_synonyms=True), 4)
        assert all(result.error_code == 0 for result in described.results)
    good, late = provider.token(), provider.token(exp=1)
    tries = [
        ("SCRAM-SHA-256", "alice", secrets["password of SCRAM"], ErrorCode.NONE),
        ("SCRAM-SHA-256", "alice", secrets["wrong password"], ErrorCode.SASL_AUTHENTICATION_FAILED),
        ("PLAIN", "carol", secrets["password of PLAIN"], ErrorCode.NONE),
        ("PLAIN", "carol", secrets["wrong password"], ErrorCode.SASL_AUTHENTICATION_FAILED),
        ("PLAIN", "alice", secrets["password of SCRAM"], ErrorCode.NONE),
        # Of three parts the last has a zero byte: no message of PLAIN.
        ("PLAIN", "carol", f"{secrets['password of PLAIN']}\0", ErrorCode.SASL_AUTHENTICATION_FAILED),
        ("PLAIN", CRASHES, secrets["password of PLAIN"], ErrorCode.UNKNOWN_SERVER_ERROR),
    ]
    for mechanism, user, password, expected in tries:
        with Recording(broker.at("SASL_PLAINTEXT")) as client:
            assert client.log_in(user, password, mechanism).error_code == expected, (mechanism, user)
    for token in (good, late, f"{good}x"):
        with Recording(broker.at("SASL_PLAINTEXT")) as client:
            assert client.handshake("OAUTHBEARER").error_code == 0
            client.authenticate(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    with Recording(broker.at("SASL_PLAINTEXT")) as client, contextlib.suppress(ClosedByBrokerError, OSError):
        # A client without a handshake, whose first bytes are its password.
        client.send_bytes(f"\0\0\0\x40\0carol\0{secrets['password of PLAIN']}".encode().ljust(68, b"\0"))
        client.receive_frame()
    return {f"token {number}": item.rpartition(".")[2] for number, item in enumerate((good, late))}


def page(planted: Planted, path: str, token: str) -> str:
    """Return what stands on a page for a client that has the token."""
    port = planted.broker.ops_address.rpartition(":")[2]
    context = planted.authority.client()
    with contextlib.closing(
        http.client.HTTPSConnection(f"localhost:{port}", timeout=30, context=context)
    ) as client:
        client.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        return client.getresponse().read().decode()


def pages(planted: Planted) -> str:
    token, wrong = planted.secrets["token of the console's readers"], planted.secrets["wrong token"]
    paths = ("/metrics", "/healthz", "/readyz", "/console", "/api/overview", "/api/cluster", "/api/topics")
    read = [page(planted, path, token) for path in (*paths, "/api/topic?name=orders", "/api/session")]
    return "".join([*read, page(planted, "/api/topics", wrong)])


def said_of_sentinels(planted: Planted) -> str:
    """Return what commands say about Redis by Sentinels that have a password, and are away."""
    config = planted.directory / "sentinels.toml"
    config.touch(0o600)
    secret = planted.secrets["password of Sentinels"]
    url = f"redis+sentinel://127.0.0.1:1/master?sentinel_username=korvet&sentinel_password={secret}"
    config.write_text(toml({"redis.url": url}))
    done = [korvet(*command, "--config", str(config)) for command in (("config",), ("doctor",))]
    return "".join(item.stdout + item.stderr for item in done)


def stored(client: Any) -> str:
    read = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1),
        b"stream": client.xrange,
    }
    return "".join(f"{key!r} {read[client.type(key)](key)!r}" for key in client.scan_iter())


def command_lines(broker: Broker) -> str:
    pids = [broker.pid, *descendants(broker.pid)]
    return "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)


def forms(secret: str) -> tuple[str, ...]:
    return secret, json.dumps(secret)[1:-1], base64.b64encode(secret.encode()).decode(), secret.encode().hex()


def test_planted_secrets_are_nowhere(planted: Planted) -> None:
    broker = planted.broker
    with Client(broker.at("PLAINTEXT")) as admin:
        admin.create("orders")
    configuration = planted.config.read_text()
    for form in ("text", "json"):
        planted.config.write_text(f'{configuration}"log.format" = "{form}"\n')
        broker.reload()
        faults = broker.log().count("Traceback")
        planted.secrets.update(
            {f"{what}, logged as {form}": token for what, token in sessions(planted).items()}
        )
        assert broker.log().count("Traceback") > faults, "the fault is logged with its traceback"
    shown = {
        "pages": pages(planted),
        "Redis": stored(planted.redis),
        "command lines": command_lines(broker),
        "commands about Sentinels": said_of_sentinels(planted),
        "configs": "".join(
            korvet("config", "--config", str(planted.config), *form).stdout for form in ([], ["--json"])
        ),
    }
    assert "orders" in shown["pages"]
    assert "sentinel" in shown["commands about Sentinels"]
    assert "alice" in shown["Redis"]
    # Redis has another password: texts in requests, pages and a failed reload.
    planted.redis.config_set("requirepass", "another")
    planted.redis.client_kill_filter(_type="normal", skipme=True)
    with Recording(broker.at("PLAINTEXT")) as client:
        client.produce("orders")
        wait_until(lambda: "unavailable" in broker.log() or "WRONGPASS" in broker.log(), "Redis is away")
        shown["pages while Redis is away"] = pages(planted)
    doctor = korvet("doctor", "--config", str(planted.config))
    shown |= {
        "doctor": doctor.stdout + doctor.stderr,
        "answers": b"".join(Recording.answers).decode("latin-1"),
        "log": broker.log(),
        "output": broker.output(),
    }
    assert "user=carol" in shown["log"]
    result = [
        f"{what} in {where}"
        for what, secret in planted.secrets.items()
        for where, text in shown.items()
        for form in forms(secret)
        if form in text
    ]
    assert result == []


def test_no_process_leaves_a_core(tmp_path: Path) -> None:
    with korvet_broker(tmp_path, workers=1) as broker:
        for pid in (broker.pid, *descendants(broker.pid)):
            [line] = [
                line
                for line in Path(f"/proc/{pid}/limits").read_text().splitlines()
                if line.startswith("Max core file size")
            ]
            assert line.split()[4] == "0"
