"""`--command-config`: commands at a listener with a login, and what they say when they are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.protocol.types import ScramMechanism
from tests.cli.commands import done, done_as_json, failed, korvet_process, refused, run
from tests.support.authority import Authority
from tests.support.in_process import InProcessBroker, only_broker
from tests.support.sasl_client import set_password
from tests.support.topic_client import Client
from tests.support.tutorial import section_of

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs/security.md"
JAVA, LIBRDKAFKA = re.findall(
    r"^```properties\n(.*?)^```", section_of(PAGE.read_text(), "Clients"), re.MULTILINE | re.DOTALL
)
PASSWORD = "the-password-of-alice-in-this-test"


@pytest.fixture(scope="module")
def broker(redis_server: str, authority: Authority) -> Iterator[InProcessBroker]:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.location": str(authority.issue("/CN=broker", hosts="IP:127.0.0.1").store),
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.ssl.ssl.client.auth": "required",
    }
    with only_broker(redis_server, settings) as running:
        with Client(running.at("PLAINTEXT")) as admin:
            set_password(admin, "alice", PASSWORD, ScramMechanism.SCRAM_SHA_512)
        yield running


@pytest.fixture(params=[JAVA, LIBRDKAFKA], ids=["java", "librdkafka"])
def secured(
    request: pytest.FixtureRequest, broker: InProcessBroker, authority: Authority, tmp_path: Path
) -> list[str]:
    """Return the flags of alice, with a file as the page has it."""
    return flags(broker, tmp_path, authority.certificate, form=request.param)


def flags(
    broker: InProcessBroker, directory: Path, ca: Path, password: str = PASSWORD, form: str = JAVA
) -> list[str]:
    file = directory / "client.properties"
    file.write_text(form.replace("/etc/kafka/ca.pem", str(ca)).replace("...", password))
    return [*at(broker, "SASL_SSL"), "--command-config", str(file)]


def at(broker: InProcessBroker, listener: str, host: str = "") -> list[str]:
    own, port = broker.at(listener)
    return ["-b", f"{host or own}:{port}"]


def one_line(*arguments: str) -> str:
    """Return the only line of a command that fails without a retry: one that retries says so."""
    said = failed(run(*arguments))
    assert said.startswith("Error: ")
    assert said.count("\n") == 1
    return said


def completions(line: str) -> list[str]:
    """Return what zsh would offer for the last word of a line."""
    words = {"_KORVET_COMPLETE": "zsh_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    return korvet_process(environ=words).stdout.split()


def test_topics_records_and_groups_are_used_with_a_login(secured: list[str], tmp_path: Path) -> None:
    topic = tmp_path.name
    done(run("topics", "create", topic, "--partitions", "2", *secured))
    assert topic in [item["topic"] for item in done_as_json("topics", "list", *secured)]
    done(run("produce", topic, *secured, given=b"one\ntwo\n"))
    assert sorted(done(run("consume", topic, "--exit", *secured)).split()) == [b"one", b"two"]
    member = run("consume", topic, "--group", topic, "--offset", "beginning", "--exit", *secured)
    assert sorted(done(member).split()) == [b"one", b"two"]
    printed = done(korvet_process("shell", *secured, given="topics list\ngroups list\n"))
    assert printed.count(topic) == 2
    assert topic in completions(f"korvet topics describe {' '.join(secured)} {topic[:-1]}")


def test_a_client_shows_its_certificate(
    broker: InProcessBroker, authority: Authority, tmp_path: Path
) -> None:
    file, identity = tmp_path / "client.properties", authority.issue("/CN=alice")
    trusting = f"security.protocol=SSL\nssl.truststore.location={authority.certificate}\n"
    file.write_text(f"{trusting}ssl.keystore.type=PEM\nssl.keystore.location={identity.store}\n")
    given = [*at(broker, "SSL"), "--command-config", str(file)]
    done(run("topics", "create", "shown", *given))
    done(run("produce", "shown", *given, given=b"one\n"))
    assert done(run("consume", "shown", "--exit", *given)) == b"one\n"
    file.write_text(trusting)
    assert "refuses this client by TLS: certificate required" in one_line("topics", "list", *given)


COMMANDS = [("topics", "list"), ("produce", "orders"), ("consume", "orders"), ("groups", "list")]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_password_ends_a_command_at_once(
    broker: InProcessBroker, authority: Authority, tmp_path: Path, command: list[str]
) -> None:
    wrong = "a-wrong-password-of-this-test"
    said = one_line(*command, *flags(broker, tmp_path, authority.certificate, wrong))
    assert "Authentication failed" in said
    assert wrong not in said


def test_a_broker_that_is_not_known_ends_a_command_at_once(
    broker: InProcessBroker, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other").certificate
    said = one_line("topics", "list", *flags(broker, tmp_path, other))
    assert "the certificate of 127.0.0.1:" in said
    assert "unable to get local issuer certificate" in said or "self-signed" in said
    by_name = [*flags(broker, tmp_path, authority.certificate), *at(broker, "SASL_SSL", "localhost")]
    assert "Hostname mismatch, certificate is not valid for 'localhost'" in one_line(
        "topics", "list", *by_name
    )


def test_a_client_of_another_protocol_learns_which_it_is(
    broker: InProcessBroker, authority: Authority, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"

    def said(listener: str, protocol: str) -> str:
        file.write_text(
            f"security.protocol={protocol}\nssl.truststore.location={authority.certificate}\n"
            f"sasl.mechanism=PLAIN\nsasl.username=alice\nsasl.password={PASSWORD}\n"
        )
        line = one_line("topics", "list", *at(broker, listener), "--command-config", str(file))
        assert PASSWORD not in line
        return line

    assert "speaks TLS: security.protocol has to be SSL or SASL_SSL" in said("SASL_SSL", "PLAINTEXT")
    assert "speaks TLS: security.protocol has to be SSL or SASL_SSL" in said("SASL_SSL", "SASL_PLAINTEXT")
    assert "speaks TLS: security.protocol has to be SSL or SASL_SSL" in said("SSL", "PLAINTEXT")
    assert "does not speak TLS: security.protocol has to be PLAINTEXT or" in said("PLAINTEXT", "SASL_SSL")
    assert "takes no SASL: security.protocol has to be PLAINTEXT or SSL" in said(
        "PLAINTEXT", "SASL_PLAINTEXT"
    )
    assert "requires a login: security.protocol has to be SASL_SSL, and" in said("SASL_SSL", "SSL")
    assert "does not take PLAIN, only SCRAM-SHA-256, SCRAM-SHA-512" in said("SASL_SSL", "SASL_SSL")


def test_a_file_that_cannot_be_used_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    assert "No such file" in refused("topics", "list", "--command-config", str(file))
    file.write_text(f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config={PASSWORD}\n")
    said = refused("topics", "list", "--command-config", str(file))
    assert "sasl.jaas.config must be" in said
    assert PASSWORD not in said
