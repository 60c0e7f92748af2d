"""Named listeners as settings: what Kafka takes is taken, and what cannot be meant is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from korvet.config.listeners import advertised_by_name, wanted_listeners
from korvet.config.sources import load
from korvet.errors import ConfigError

TWO = "INSIDE://0.0.0.0:9092,OUTSIDE://0.0.0.0:9094"


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
        ("A://127.0.0.1:1,ssl://127.0.0.1:2", "not SASL_PLAINTEXT, SASL_SSL, SSL"),
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
        "PLAINTEXT://0.0.0.0:9092",
        "PLAINTEXT://:9092",
        "PLAINTEXT://[::]:9092",
        "PLAINTEXT://one:0",
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
    settings = load(None, {}, {"listeners": text}).settings
    assert [str(each) for each in wanted_listeners(settings.listeners, settings.listen)] == listeners


def test_without_a_name_there_is_one_listener_called_plaintext() -> None:
    for values in ({}, {"listeners": ""}):
        settings = load(None, {}, {"listen": "[::1]:7", **values}).settings
        [listener] = wanted_listeners(settings.listeners, settings.listen)
        assert str(listener) == "PLAINTEXT://[::1]:7"


def test_names_are_compared_without_case() -> None:
    found = load(None, {}, {"listeners": TWO.lower(), "advertised.listeners": "Outside://one:1"}).settings
    listeners = wanted_listeners(found.listeners, found.listen)
    assert [str(each) for each in listeners] == TWO.split(",")
    assert advertised_by_name(listeners, found.advertised_listeners) == {"OUTSIDE": ("one", 1)}


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
