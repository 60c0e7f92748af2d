"""A client's security: the configs it takes, their files, and refusals."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from korvet.admin import sasl
from korvet.admin.errors import AuthenticationFailedError
from korvet.admin.security import PLAINTEXT, ClientSecurity, from_configs, read_properties

SECRET = "0p3n-s3s4m3"
SCRAM = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
LOGIN = {"sasl.username": "alice", "sasl.password": SECRET}
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
TLS = Path(__file__).parent.parent / "support" / "tls"


def test_nothing_given_is_plaintext() -> None:
    assert from_configs({}) == PLAINTEXT
    assert from_configs({"request.timeout.ms": "1"}) == PLAINTEXT


@pytest.mark.parametrize(
    "configs",
    [
        SCRAM | LOGIN,
        {"security.protocol": "sasl_plaintext", "sasl.mechanisms": "SCRAM-SHA-512"} | LOGIN,
        SCRAM | {"sasl.jaas.config": f'{MODULE} required username="alice" password="{SECRET}";'},
        SCRAM | {"sasl.jaas.config": f'{MODULE} required\n username = "alice"\n password = "{SECRET}" ;'},
    ],
)
def test_a_user_is_given_by_each_clients_names(configs: dict[str, str]) -> None:
    security = from_configs(configs)
    assert (security.mechanism, security.username, security.password) == ("SCRAM-SHA-512", "alice", SECRET)


def test_a_quote_in_a_password_of_jaas_is_escaped() -> None:
    jaas = f'{MODULE} required username="alice" password="a\\"b\\\\c;";'
    assert from_configs(SCRAM | {"sasl.jaas.config": jaas}).password == 'a"b\\c;'


@pytest.mark.parametrize(
    ("configs", "says"),
    [
        ({"security.protocol": "TLS"}, "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, not 'TLS'"),
        (SCRAM | {"sasl.mechanism": "GSSAPI"} | LOGIN, "must be one of PLAIN, .*, not 'GSSAPI'"),
        (SCRAM, "SCRAM-SHA-512 needs sasl.username and sasl.password"),
        (SCRAM | {"sasl.jaas.config": "no"}, "sasl.jaas.config must be"),
        (SCRAM | {"sasl.jaas.config": "a.Krb5LoginModule required;"}, "Krb5LoginModule is not supported"),
        (SCRAM | {"sasl.mechanism": "OAUTHBEARER"}, "needs sasl.oauthbearer.token.endpoint.url"),
        ({"ssl.truststore.type": "JKS"}, "ssl.truststore.type must be PEM"),
        ({"ssl.provider": "BC"}, "ssl.provider is not known"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere.pem"}, "/nowhere.pem: No such file"),
        ({"security.protocol": "SSL", "ssl.ca.location": str(TLS / "key.pem")}, "ssl.truststore.location"),
        (
            {"security.protocol": "SSL", "ssl.keystore.location": str(TLS / "key.pem")},
            "ssl.keystore.location",
        ),
    ],
)
def test_what_cannot_work_is_refused(configs: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        from_configs(configs)


@pytest.mark.parametrize(
    "client",
    [
        {"ssl.certificate.location": str(TLS / "certificate.pem"), "ssl.key.location": str(TLS / "key.pem")},
        {
            "ssl.keystore.certificate.chain": (TLS / "certificate.pem").read_text(encoding="ascii"),
            "ssl.keystore.key": (TLS / "key.pem").read_text(encoding="ascii"),
        },
    ],
)
def test_a_clients_certificate_is_read_from_files_and_from_text(client: dict[str, str]) -> None:
    from_configs(
        {"security.protocol": "SSL", "ssl.ca.location": str(TLS / "certificate.pem")} | client
    ).tls_context()


def test_the_text_of_a_security_has_no_secret() -> None:
    security = from_configs(SCRAM | LOGIN)
    assert SECRET not in f"{security!r} {security}"
    assert "alice" in repr(security)


def test_properties_are_read_as_java_does(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "# a comment\n! another\n\nsecurity.protocol=SSL\n  spaced   value with = signs  \n"
        "colon: a\\u00e9\\tb\nlong=one, \\\n    two\nkey\\ with\\=sign=x\nempty\n",
        encoding="utf-8",
    )
    assert read_properties(file) == {
        "security.protocol": "SSL",
        "spaced": "value with = signs  ",
        "colon": "aé\tb",
        "long": "one, two",
        "key with=sign": "x",
        "empty": "",
    }


@pytest.mark.parametrize(
    ("content", "says"), [(None, "No such file"), (b"\xff", "not UTF-8"), (b"=" + SECRET.encode(), "no name")]
)
def test_a_file_that_cannot_be_read_is_named_without_its_content(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "client.properties"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=says) as refused:
        read_properties(file)
    assert str(file) in str(refused.value)
    assert SECRET not in str(refused.value)


def test_plaintext_takes_no_part_in_tls() -> None:
    assert not ClientSecurity().uses_tls
    assert (
        from_configs({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"} | LOGIN).uses_tls
        is False
    )


@pytest.mark.parametrize(
    ("content", "says"), [(None, "No such file or directory"), (b"t\xc3\xb6ken", "UnicodeDecodeError")]
)
def test_a_token_that_cannot_be_read_is_an_error_that_names_its_file(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(AuthenticationFailedError, match=f"no token from file://{file}: {says}"):
        sasl.token(bearer(f"file://{file}"), 1)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", "HTTP 401"),
        (b"HTTP/1.1 200 Yes\r\nContent-Length: 2\r\n\r\n{}", "ValidationError"),
        (b"HTTP/1.1 200 Yes\r\nContent-Length: 9\r\n\r\n{", "DecodeError"),
        (b"SSH-2.0\r\n\r\n", "BadStatusLine"),
    ],
)
def test_a_token_server_that_gives_none_is_an_error_without_the_secret(answer: bytes, says: str) -> None:
    with (
        token_server(answer) as (port, received),
        pytest.raises(AuthenticationFailedError, match=f"no token from http://127.0.0.1: {says}") as failed,
    ):
        sasl.token(bearer(f"http://127.0.0.1:{port}/token"), 5)
    assert SECRET not in str(failed.value)
    assert b"grant_type=client_credentials" in received[0]


def test_a_token_is_granted_to_a_client(tmp_path: Path) -> None:
    body = b'{"access_token": "a.b.c", "expires_in": 60}'
    with token_server(b"HTTP/1.1 200 Yes\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)) as (
        port,
        received,
    ):
        assert sasl.token(bearer(f"http://127.0.0.1:{port}/token"), 5) == "a.b.c"
    assert base64.b64encode(f"korvet:{SECRET}".encode()) in received[0]


def bearer(url: str) -> ClientSecurity:
    return from_configs(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": url,
            "sasl.login.callback.handler.class": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
            ),
            "sasl.oauthbearer.client.credentials.client.id": "korvet",
            "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        }
    )


@contextmanager
def token_server(answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Run a server that answers one request; gives its port, and what it has received."""
    received: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            while b"grant_type" not in b"".join(received):
                received.append(connection.recv(65536))
            received[:] = [b"".join(received)]
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], received
        thread.join()


def scram(challenge: Callable[[str], str]) -> str:
    """Return why a client ends the exchange after a challenge to its first message."""
    exchange = sasl.exchange(from_configs(SCRAM | LOGIN), 1)
    nonce = next(exchange).decode().partition(",r=")[2]
    try:
        exchange.send(challenge(nonce).encode())
        exchange.send(b"v=" + base64.b64encode(b"\0" * 64))
    except AuthenticationFailedError as failed:
        return str(failed)
    return ""


@pytest.mark.parametrize(
    ("challenge", "says"),
    [
        (lambda nonce: f"r={nonce}x,s=YWJj,i=4095", "asks for 4095 iterations"),
        (lambda nonce: f"r={nonce}x,s=YWJj,i=1000001", "asks for 1000001 iterations"),
        (lambda nonce: f"r={nonce},s=YWJj,i=4096", "not an answer to this client"),
        (lambda nonce: f"r=x{nonce},s=YWJj,i=4096", "not an answer to this client"),
        (lambda nonce: f"r={nonce}x,s=?,i=4096", "cannot be read"),
        (lambda nonce: f"r={nonce}x,i=4096", "cannot be read"),
        (lambda _: "", "cannot be read"),
        (lambda nonce: f"r={nonce}x,s=YWJj,i=4096", "may be an impostor"),
    ],
)
def test_a_broker_that_does_not_know_the_password_is_not_trusted(
    challenge: Callable[[str], str], says: str
) -> None:
    assert says in scram(challenge)
