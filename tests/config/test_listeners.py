"""Named listeners as settings: what Kafka takes is taken, and what cannot be meant is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from korvet.config.listeners import SecurityProtocol, advertised_by_name, wanted_listeners
from korvet.config.settings import Settings
from korvet.config.sources import load
from korvet.errors import ConfigError

TWO = "INSIDE://0.0.0.0:9092,OUTSIDE://0.0.0.0:9094"
MAP = "listener.security.protocol.map"
TWO_MAP = "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"


def refusal(**values: str) -> str:
    """Return the error, one line, for these values on the command line; `_` stands for a dot."""
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {name.replace("_", "."): value for name, value in values.items()})
    line = str(caught.value)
    assert line.isprintable()
    assert len(line) < 300
    return line


@pytest.mark.parametrize(
    ("listeners", "allowed"),
    [
        ("127.0.0.1:9092", "NAME://HOST:PORT"),
        ("://127.0.0.1:9092", "NAME://HOST:PORT"),
        ("IN.SIDE://127.0.0.1:9092", "letters, digits"),
        ("A://127.0.0.1:9092,", "comma-separated"),
        ("A://127.0.0.1:65536", "NAME://HOST:PORT"),
        ("A://127.0.0.1:-1", "NAME://HOST:PORT"),
        ("A://::1:9092", "NAME://HOST:PORT"),
        ("A://127.0.0.1:1,a://127.0.0.1:2", "each name and each port once"),
        ("A://127.0.0.1:1,B://127.0.0.2:1", "each name and each port once"),
        ("A://localhost:1,B://[::1]:1", "each name and each port once"),
    ],
)
def test_what_cannot_be_listened_to_is_refused(listeners: str, allowed: str) -> None:
    line = refusal(listeners=listeners)
    assert " for configuration listeners (command line): it must be " in line
    assert allowed in line


@pytest.mark.parametrize(
    "listeners",
    [
        *("PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://:9092", "PLAINTEXT://[::]:9092", "PLAINTEXT://one:0"),
        "PLAINTEXT://one:1,Plaintext://two:2",
    ],
)
def test_what_clients_cannot_connect_to_is_not_advertised(listeners: str) -> None:
    line = refusal(advertised_listeners=listeners)
    assert " for configuration advertised.listeners (command line): it must be " in line
    assert "with addresses that clients can connect to and each name once" in line


@pytest.mark.parametrize(
    ("text", "listeners"),
    [
        ("PLAINTEXT://:9092", ["PLAINTEXT://0.0.0.0:9092"]),
        ("inside://0.0.0.0:0, OUT_SIDE-2://one:0", ["INSIDE://0.0.0.0:0", "OUT_SIDE-2://one:0"]),
        ("A://127.0.0.1:9092,B://[::1]:9092", ["A://127.0.0.1:9092", "B://[::1]:9092"]),
    ],
)
def test_listeners_are_taken_as_kafka_takes_them(text: str, listeners: list[str]) -> None:
    names = (listener.partition("://")[0] for listener in text.split(","))
    protocols = ",".join(f"{name}:PLAINTEXT" for name in names)
    settings = load(None, {}, {"listeners": text, MAP: protocols}).settings
    assert [
        str(wanted_listener) for wanted_listener in wanted_listeners(settings.listeners, settings.listen)
    ] == listeners


def test_without_a_name_there_is_one_listener_called_plaintext() -> None:
    for values in ({}, {"listeners": ""}):
        settings = load(None, {}, {"listen": "[::1]:7", **values}).settings
        [listener] = wanted_listeners(settings.listeners, settings.listen)
        assert str(listener) == "PLAINTEXT://[::1]:7"


def test_names_are_compared_without_case() -> None:
    result = load(
        None, {}, {"listeners": TWO.lower(), MAP: TWO_MAP.lower(), "advertised.listeners": "Outside://one:1"}
    ).settings
    listeners = wanted_listeners(result.listeners, result.listen)
    assert [str(listener) for listener in listeners] == TWO.split(",")
    assert advertised_by_name(listeners, result.advertised_listeners) == {"OUTSIDE": ("one", 1)}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"listeners": TWO, "listen": "127.0.0.1:9092"}, "give listeners alone"),
        ({"listeners": TWO, "advertised": "one:1"}, "give advertised.listeners alone"),
        (
            {"advertised_listeners": "PLAINTEXT://one:1", "advertised": "one:1"},
            "give advertised.listeners alone",
        ),
    ],
)
def test_named_listeners_and_the_short_way_to_have_one_do_not_go_together(
    values: dict[str, str], says: str
) -> None:
    line = refusal(**values)
    assert says in line
    assert line.count("(command line)") == 2


def test_two_ways_are_refused_with_where_each_was_given(tmp_path: Path) -> None:
    file = tmp_path / "korvet.toml"
    file.write_text('"listen" = "127.0.0.1:9092"\n')
    with pytest.raises(ConfigError) as caught:
        load(file, {"KORVET_LISTENERS": TWO}, {})
    assert str(caught.value).startswith(f"listen ({file}) is for a single listener")
    assert "listeners (environment)" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"listeners": TWO, "advertised_listeners": "ELSEWHERE://one:1"}, "INSIDE, OUTSIDE"),
        ({"advertised_listeners": "ELSEWHERE://one:1"}, "PLAINTEXT"),
    ],
)
def test_an_address_for_a_listener_that_is_not_there_is_refused(values: dict[str, str], names: str) -> None:
    line = refusal(**values)
    assert line == f"advertised.listeners: there is no listener ELSEWHERE to connect to, only {names}"


def test_a_listener_is_secured_as_the_map_says() -> None:
    settings = Settings(listener_security_protocol_map="out:sasl_ssl, PLAINTEXT:PLAINTEXT")
    assert settings.security_protocol("OUT") is SecurityProtocol.SASL_SSL
    assert settings.security_protocol("PLAINTEXT") is SecurityProtocol.PLAINTEXT
    assert [(item.tls, item.sasl) for item in SecurityProtocol] == [
        (False, False),
        (True, False),
        (False, True),
        (True, True),
    ]
    assert [Settings().security_protocol(item) for item in SecurityProtocol] == list(SecurityProtocol)


@pytest.mark.parametrize("text", ["OUT", "OUT:TLS", ":SSL", "A:SSL,a:PLAINTEXT", "A:SSL,"])
def test_a_map_that_says_nothing_is_refused(text: str) -> None:
    line = refusal(listener_security_protocol_map=text)
    assert "it must be NAME:PROTOCOL, comma-separated, each name once, with PLAINTEXT, SSL," in line


def test_a_listener_that_is_not_in_the_map_is_refused_as_in_kafka() -> None:
    line = refusal(listeners=TWO, listener_security_protocol_map="INSIDE:PLAINTEXT")
    assert line.startswith(
        "No security protocol defined for listener OUTSIDE: add OUTSIDE:PLAINTEXT, or another"
    )


def test_one_listener_has_other_settings_from_each_source(tmp_path: Path) -> None:
    file = tmp_path / "korvet.toml"
    file.write_text(
        '"ssl.client.auth" = "requested"\n"listener.name.inside.ssl.client.auth" = "none"\n'
        '"listener.name.out_side-2.ssl.key.password" = "secret-1"\n'
    )
    config = load(
        file,
        {"KORVET_LISTENER_NAME_INSIDE_SSL_KEYSTORE_LOCATION": "/inside.pem"},
        {
            "listeners": "INSIDE://:1,OUT_SIDE-2://:2",
            MAP: "INSIDE:PLAINTEXT,OUT_SIDE-2:PLAINTEXT",
            "listener.name.out_side-2.ssl.client.auth": "required",
        },
    )
    settings = config.settings
    inside, outside = settings.for_listener("INSIDE"), settings.for_listener("OUT_SIDE-2")
    assert [item.ssl_client_auth for item in (settings, inside, outside)] == ["requested", "none", "required"]
    assert (inside.ssl_keystore_location, outside.ssl_keystore_location) == ("/inside.pem", "")
    assert (inside.ssl_key_password, outside.ssl_key_password) == ("", "secret-1")
    origins = {name: origin for name, origin in config.origins.items() if name.startswith("listener.name.")}
    assert origins == {
        "listener.name.inside.ssl.client.auth": str(file),
        "listener.name.inside.ssl.keystore.location": "environment",
        "listener.name.out_side-2.ssl.key.password": str(file),
        "listener.name.out_side-2.ssl.client.auth": "command line",
    }
    assert "listener.name.out_side-2.ssl.key.password='***'" in repr(settings)
    assert "secret-1" not in repr(settings) + repr(outside)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("listener.name.elsewhere.ssl.client.auth", "there is no such listener, only PLAINTEXT"),
        ("listener.name.plaintext.workers", "workers cannot differ between listeners"),
        ("listener.name.plaintext.no.such", "unknown setting"),
        ("listener.name.PLAINTEXT.ssl.client.auth", "unknown setting"),
        ("inter.broker.listener.name", "do not connect to each other; leave it out"),
        ("security.inter.broker.protocol", "do not connect to each other; leave it out"),
        ("ssl.keystore.password", "PEM files have no such password"),
        (
            "sasl.jaas.config",
            "users of PLAIN stand in the file of sasl.plain.users.file, those of SCRAM in Redis",
        ),
        ("listener.name.plaintext.plain.sasl.jaas.config", "file of sasl.plain.users.file"),
        ("listener.name.plaintext.oauthbearer.sasl.server.callback.handler.class", "sasl.oauthbearer"),
        ("listener.name.plaintext.gssapi.sasl.kerberos.service.name", "GSSAPI .Kerberos. is not supported"),
        ("listener.name.plaintext.plain.sasl.plain.users.file", "cannot differ between mechanisms"),
        ("listener.name.plaintext.digest-md5.connections.max.reauth.ms", "unknown setting"),
        ("listener.name.elsewhere.plain.connections.max.reauth.ms", "it must be a whole number"),
        ("sasl.enabled.mechanisms", "a list of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
    ],
)
def test_what_no_listener_can_have_is_refused(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        load(None, {}, {name: "required"})
    file = tmp_path / "korvet.toml"
    file.write_text(f'"{name}" = "required"\n')
    with pytest.raises(ConfigError, match=says):
        load(file, {}, {})


def test_a_value_that_one_listener_cannot_have_is_refused_by_its_whole_name() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"KORVET_LISTENER_NAME_PLAINTEXT_SSL_CLIENT_AUTH": "maybe"}, {})
    assert str(caught.value) == (
        "Invalid value 'maybe' for configuration listener.name.plaintext.ssl.client.auth (environment): "
        "it must be one of none, requested, required"
    )


def test_a_private_key_is_never_shown() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"
    for text in (key, key.replace("\n", " ")):
        assert load(None, {}, {"ssl.keystore.key": text}).settings.ssl_keystore_key == text
        assert "c2VjcmV0" not in repr(load(None, {}, {"ssl.keystore.key": text}).settings)
    with pytest.raises(ConfigError, match=r"Invalid value '\*\*\*' for configuration ssl\.keystore\.key"):
        load(None, {}, {"ssl.keystore.key": "c2VjcmV0"})


def test_a_mechanism_of_a_listener_has_its_own_value() -> None:
    name = "connections.max.reauth.ms"
    given = {name: "1", f"listener.name.plaintext.{name}": "2", f"listener.name.plaintext.plain.{name}": "3"}
    own = load(None, {}, given).settings.for_listener("PLAINTEXT")
    assert own.connections_max_reauth_ms == 2
    assert own.for_listener("PLAINTEXT.PLAIN").connections_max_reauth_ms == 3
    assert own.for_listener("PLAINTEXT.SCRAM-SHA-256").connections_max_reauth_ms == 2
    with pytest.raises(ConfigError, match="no such listener"):
        load(None, {}, {f"listener.name.other.plain.{name}": "3"})
