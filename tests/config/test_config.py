"""The settings: the content of each source, the source that wins, and the error for a wrong value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from korvet.config.settings import SETTINGS, Settings
from korvet.config.sources import BrokerConfig, load
from korvet.config.values import Address, parse_address, without_secrets
from korvet.errors import ConfigError
from korvet.redis.url import parse_url


def write(directory: Path, text: str) -> Path:
    file = directory / "korvet.toml"
    file.write_text(text, encoding="utf-8")
    return file


def refusal(
    *,
    file: Path | None = None,
    environ: dict[str, str] | None = None,
    overrides: dict[str, str] | None = None,
) -> str:
    """Return the error, one line, of loading these sources."""
    with pytest.raises(ConfigError) as caught:
        load(file, environ or {}, overrides or {})
    line = str(caught.value)
    assert line.isprintable()
    return line


def test_without_any_source_every_setting_is_its_default() -> None:
    configuration = load(None, {}, {})
    assert configuration.settings == Settings()
    assert set(configuration.origins.values()) == {"default"}
    assert list(configuration.origins) == list(SETTINGS)


def test_settings_that_kafka_has_have_its_defaults() -> None:
    settings = Settings()
    assert (settings.message_max_bytes, settings.fetch_max_bytes) == (1_048_588, 57_671_680)
    assert (settings.socket_request_max_bytes, settings.log_retention_ms) == (104_857_600, 604_800_000)
    assert (settings.log_retention_check_interval_ms, settings.log_cleaner_backoff_ms) == (300_000, 15_000)
    assert (settings.log_cleaner_dedupe_buffer_size, settings.log_cleaner_enable) == (134_217_728, True)
    assert (settings.group_initial_rebalance_delay_ms, settings.num_partitions) == (3_000, 1)
    assert settings.auto_create_topics_enable is True


def test_each_default_is_one_that_could_be_written() -> None:
    for name, item in SETTINGS.items():
        configuration = load(None, {}, {name: item.format(item.default)})
        assert item.value(configuration.settings) == item.default
        assert configuration.origins[name] == "command line"


def test_each_setting_has_an_environment_variable_of_its_own_and_a_sentence() -> None:
    assert len({item.environment for item in SETTINGS.values()}) == len(SETTINGS)
    for item in SETTINGS.values():
        assert item.doc.endswith(".")
        assert "\n" not in item.doc


def test_the_later_source_wins_and_the_origin_says_which(tmp_path: Path) -> None:
    file = write(tmp_path, '"num.partitions" = 2\n"workers" = 2\n"broker.id" = 2\n')
    environ = {"KORVET_NUM_PARTITIONS": "3", "KORVET_WORKERS": "3", "TEST_KORVET_REDIS": "docker"}
    configuration = load(file, environ, {"num.partitions": "4"})
    settings, origins = configuration.settings, configuration.origins
    assert (settings.num_partitions, origins["num.partitions"]) == (4, "command line")
    assert (settings.workers, origins["workers"]) == (3, "environment")
    assert (settings.broker_id, origins["broker.id"]) == (2, str(file))
    assert origins["listen"] == "default"


def test_a_file_gives_texts_numbers_and_booleans(tmp_path: Path) -> None:
    file = write(tmp_path, '"log.format" = "json"\n"log.retention.ms" = -1\n"delete.topic.enable" = false\n')
    settings = load(file, {}, {}).settings
    given = (settings.log_format, settings.log_retention_ms, settings.delete_topic_enable)
    assert given == ("json", -1, False)


@pytest.mark.parametrize(("text", "value"), [("0.25", 0.25), ("1", 1.0), ("0", 0.0)])
def test_a_file_may_write_a_ratio_as_a_whole_number(tmp_path: Path, text: str, value: float) -> None:
    file = write(tmp_path, f'"log.cleaner.min.cleanable.ratio" = {text}\n')
    ratio = load(file, {}, {}).settings.log_cleaner_min_cleanable_ratio
    assert (ratio, type(ratio)) == (value, float)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False), ("TRUE", True)])
def test_a_boolean_is_read_from_text_whatever_its_case(text: str, value: bool) -> None:  # noqa: FBT001 - a value of the table above
    assert load(None, {"KORVET_DELETE_TOPIC_ENABLE": text}, {}).settings.delete_topic_enable is value


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ('"num.partition" = 2', "num.partition", "did you mean num.partitions?"),
        ("[zzzzzzzzz]\nyyyyyyyyyy = 3", "zzzzzzzzz.yyyyyyyyyy", "`korvet config` lists all settings"),
    ],
)
def test_an_unknown_key_of_a_file_is_refused_and_the_nearest_known_is_named(
    tmp_path: Path, text: str, name: str, says: str
) -> None:
    file = write(tmp_path, text)
    assert refusal(file=file) == f"unknown setting '{name}' ({file}); {says}"


@pytest.mark.parametrize(
    "variable", ["KORVET_PORT", "KORVET_SERVICE_HOST", "KORVET_REDIS_PORT_6379_TCP_ADDR"]
)
def test_a_variable_of_a_service_in_kubernetes_is_refused_with_what_keeps_it_away(variable: str) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", variable: "tcp://10.0.0.2:9092"}
    advice = "Kubernetes sets it for a service: let the pod have enableServiceLinks: false"
    assert refusal(environ=environ) == f"unknown setting {variable} (environment); {advice}"


def test_an_unknown_name_that_is_near_to_none_points_to_the_list() -> None:
    line = refusal(overrides={"zzzzzzzzzz": "1"})
    assert line == "unknown setting 'zzzzzzzzzz' (command line); `korvet config` lists all settings"


def test_an_unknown_name_cannot_break_the_line() -> None:
    assert "'a\\nb\\x1b'" in refusal(overrides={"a\nb\x1b": "1"})


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("KORVET_REDISURL", "did you mean KORVET_REDIS_URL?"),
        ("KORVET_NO_SUCH", "`korvet config` lists all settings"),
        ("KORVET_BROKER", "did you mean KORVET_BROKER_ID or KORVET_BROKER_LEASE_MS?"),
        ("KORVET_NUM_PARTITION", "did you mean KORVET_NUM_PARTITIONS?"),
        ("KORVET_", "`korvet config` lists all settings"),
    ],
)
def test_an_unknown_variable_is_refused_and_what_all_begin_with_makes_none_nearer(
    variable: str, says: str
) -> None:
    assert refusal(environ={variable: "1"}) == f"unknown setting {variable} (environment); {says}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[offset.sequence]\nbit = 3", 'write "offset.sequence.bits" = ..., not '),
        ("[group.min]\nsession = 3", 'write "group.min.session.timeout.ms" = ..., not '),
        ("[storage]\ncompression = 3", 'write "storage.compression" = ..., not '),
        ("[default]\nreplication = 3", 'write "default.replication.factor" = ..., not '),
        ("[log]\nretention = 3", 'write "log.retention.ms" = ... or "log.retention.bytes" = ... or '),
        ('["num\\n"]\npartitions = 3', r"not num\n.partitions = ..."),
        ('redis.url = "redis://h"', 'write "redis.url" = ..., not redis.url = ...'),
        ('[redis]\nurl = "redis://h"', 'write "redis.url" = ..., not redis.url = ...'),
    ],
)
def test_an_unquoted_name_is_refused_with_the_quoted_forms_that_exist(
    tmp_path: Path, text: str, says: str
) -> None:
    file = write(tmp_path, text)
    line = refusal(file=file)
    assert line.startswith(f"{file}: quote the whole name of a setting: write ")
    assert says in line
    assert '"log.retention" =' not in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('"workers" = "2"', "Invalid value '2' for configuration workers"),
        ('"workers" = true', "Invalid value 'true' for configuration workers"),
        ('"workers" = 2.0', "a whole number from 0 to 1024"),
        ('"log.cleaner.min.cleanable.ratio" = 2', "a number from 0 to 1"),
        ('"log.cleaner.min.cleanable.ratio" = true', "a number from 0 to 1"),
        ('"log.cleaner.min.cleanable.ratio" = "0.5"', "a number from 0 to 1"),
        ('"delete.topic.enable" = 1', "true or false"),
        ('"log.format" = 1', "a text in quotes"),
        ('"log.format" = ["json"]', "a text in quotes"),
        ('"redis.url" = 2026-01-01', "a text in quotes"),
    ],
)
def test_a_value_of_another_type_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = write(tmp_path, text)
    line = refusal(file=file)
    assert says in line
    assert str(file) in line


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *(("workers", text, "a whole number from 0 to 1024") for text in ("-1", "two", "")),
        ("num.partitions", "0", "a whole number from 1 to 100000"),
        *(("offset.sequence.bits", text, "a whole number from 8 to 12") for text in ("13", "7")),
        ("log.retention.ms", "9" * 20, f"a whole number from -{2**63} to {2**63 - 1}"),
        ("log.retention.ms", "0", "negative, which is without limit, or 1 at least"),
        *(("log.retention.ms", text, "a whole number") for text in ("9" * 5000, "\u0661")),
        ("delete.topic.enable", "yes", "true or false"),
        ("group.share.partition.max.record.locks", "2001", "from 100 to 2000"),
        *(
            ("log.cleaner.min.cleanable.ratio", text, "a number from 0 to 1")
            for text in ("1.1", "nan", "1_0", "half", "inf", "-0.1", "")
        ),
        *(
            ("log.cleanup.policy", text, "a list of compact, delete, comma-separated")
            for text in ("delete,", "Compact", "compact,,delete")
        ),
        ("compression.type", "brotli", "one of producer, uncompressed, gzip, snappy, lz4, zstd"),
        ("storage.format", "columns", "it must be one of record, batch"),
        *(
            ("max.connections.per.ip.overrides", text, "ADDRESS:COUNT, comma-separated")
            for text in ("10.0.0.1", "10.0.0.1:-1", "10.0.0.1:x", "broker.example:5", "10.0.0.1:1,10.0.0.1:2")
        ),
        *(("listen", text, "HOST:PORT") for text in ("9092", "::1:9092", "")),
        ("listen", "127.0.0.1:65536", "a port from 0 to 65535"),
        ("advertised", "bücher.example:9092", "HOST:PORT"),
        ("ops.allowed.hosts", "bücher.example", "names of hosts"),
        ("ops.listen", "localhost", "or nothing"),
        ("advertised", "broker.example:0", "a port from 1 to 65535"),
        ("advertised", "0.0.0.0:9092", "clients can connect to"),
        ("redis.url", "localhost:6379", "redis://HOST:PORT/DB"),
        *(("namespace", text, "letters") for text in ("a:b", "", "a{b}")),
        ("cluster.id", "a b", "or nothing"),
        ("data.dir", "", "a path"),
        ("topic.reserved.names", "a/b", "PATTERNs of topics"),
        ("lake.interval.ms", "-1", "from 0"),
        ("lake.master", "local[0]", "local[CORES,TRIES], spark://HOST:PORT, k8s://HOST:PORT or yarn"),
        ("lake.master", "http://spark:7077", "or yarn"),
        ("log.level", "loud\n", "one of debug, info"),
        ("data.dir", "/data\udcff", "control characters"),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_line(name: str, value: str, allowed: str) -> None:
    line = refusal(overrides={name: value})
    assert line.startswith("Invalid value '")
    assert f" for configuration {name} (command line): it must be " in line
    assert allowed in line
    assert len(line) < 300


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("listen", address) for address in ("[::1]:0", "localhost:9092")),
        ("ops.listen", ""),
        ("advertised", "broker-1.example:9092"),
        *(("redis.url", url) for url in ("rediss://:secret@cache:6380/2", "unix:///run/redis.sock?db=1")),
        ("topic.reserved.names", ""),
        ("log.cleaner.min.cleanable.ratio", "0.25"),
        *(("log.cleanup.policy", policies) for policies in ("compact,delete", "")),
        *(("connections.max.idle.ms", "-1"), ("log.retention.ms", "-2")),
        *(("lake.master", url) for url in ("local", "local[*,4]", "spark://one:7077,two:7077")),
        ("lake.master", "k8s://https://127.0.0.1:6443"),
        ("data.dir", "/srv/größe mit leerzeichen"),
    ],
)
def test_a_value_in_range_is_taken_as_it_is(name: str, value: str) -> None:
    assert str(SETTINGS[name].value(load(None, {}, {name: value}).settings)) == value


@pytest.mark.parametrize(
    "overrides",
    [
        {"group.min.session.timeout.ms": "10000", "group.max.session.timeout.ms": "9999"},
        {"log.cleaner.min.compaction.lag.ms": "2", "log.cleaner.max.compaction.lag.ms": "1"},
        {"group.consumer.session.timeout.ms": "60001"},
        {"group.share.record.lock.duration.ms": "14999"},
        {"group.streams.session.timeout.ms": "44999"},
        {"group.streams.heartbeat.interval.ms": "15001"},
        {"group.streams.num.standby.replicas": "3"},
        {"memory.throttle.percent": "96"},
        {"socket.request.max.bytes": "2000000000"},
        {"queued.max.request.bytes": "1024"},
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides: dict[str, str]) -> None:
    assert "is more than" in refusal(overrides=overrides)


def test_no_connection_of_an_address_is_refused_unless_some_address_has_its_own() -> None:
    none = {"max.connections.per.ip": "0"}
    own = "max.connections.per.ip.overrides"
    for overrides in (none, none | {own: "10.0.0.1:0"}):
        assert "would shut out all addresses" in refusal(overrides=overrides)
    assert load(None, {}, none | {own: "10.0.0.1:5"}).settings.max_connections_per_ip == 0


@pytest.mark.parametrize(
    ("name", "reason"), [("none.toml", "No such file or directory"), (".", "Is a directory")]
)
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    file = tmp_path / name
    assert refusal(file=file) == f"cannot read the configuration file {file}: {reason}"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"workers", b"workers = 1\nworkers = 2\n"])
def test_a_file_that_is_no_toml_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "korvet.toml"
    file.write_bytes(content)
    assert refusal(file=file).startswith(f"cannot read the configuration file {file}: ")


def test_a_password_is_neither_in_an_error_nor_in_the_shown_value_nor_in_the_repr() -> None:
    line = refusal(overrides={"redis.url": "http://user:hunter2@host"})
    assert "hunter2" not in line
    assert "***" in line
    configuration = load(None, {}, {"redis.url": "redis://user:hunter2@host:6379/0"})
    assert SETTINGS["redis.url"].format(configuration.settings.redis_url) == "redis://user:***@host:6379/0"
    assert "hunter2" not in repr(configuration)
    assert configuration.settings.redis_url == "redis://user:hunter2@host:6379/0"


@pytest.mark.parametrize(
    "url",
    [
        *("redis://:hunter2@host", "rediss://user:hunter2@host:1/0", "redis://user:hun/hunter2@host"),
        *("redis://user:a@hunter2@host", "redis://host/0?password=hunter2&db=1"),
        "unix://user:hunter2@/run/redis.sock",
        "redis+sentinel://user:hunter2@h1,h2/master",
        "redis+sentinel://h1,h2/master?db=1&sentinel_password=hunter2",
    ],
)
def test_passwords_are_masked_wherever_a_url_holds_them(url: str) -> None:
    assert "hunter2" not in without_secrets(f"cannot reach {url}: refused")
    assert without_secrets(url) != url


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("broker.example:65535", Address("broker.example", 65535)),
        ("[::1]:9092", Address("::1", 9092)),
        ("[fe80::1%eth0]:9092", Address("fe80::1%eth0", 9092)),
    ],
)
def test_an_address_is_read_and_written_back(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@given(st.text())
@example("a:\u0661")
@example("[]:1")
@example("a b:1")
@example("a:+1")
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        return
    assert 0 <= address.port <= 65535
    assert parse_address(str(address)) == address


@given(st.dictionaries(st.sampled_from(list(SETTINGS)), st.text(max_size=30), max_size=3))
def test_any_texts_are_settings_or_one_printable_line(overrides: dict[str, str]) -> None:
    try:
        configuration = load(None, {}, overrides)
    except ConfigError as error:
        assert str(error).isprintable()  # noqa: PT017 -- both outcomes are legal
    else:
        assert isinstance(configuration, BrokerConfig)


def test_only_korvets_own_variables_are_read() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KORVET_")}
    assert load(None, environ, {}).settings == Settings()


def test_the_password_of_redis_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "redis-password"
    file.write_text("p@ss/w:rd%\n", encoding="utf-8")
    for url, becomes in (
        ("redis://redis.example:6379/0", "redis://:p%40ss%2Fw%3Ard%25@redis.example:6379/0"),
        ("rediss://korvet@[::1]:6380?db=1", "rediss://korvet:p%40ss%2Fw%3Ard%25@[::1]:6380?db=1"),
        ("unix:///run/redis.sock", "unix://:p%40ss%2Fw%3Ard%25@/run/redis.sock"),
        ("redis+sentinel://h1,[::1]:7/m?db=1", "redis+sentinel://:p%40ss%2Fw%3Ard%25@h1,[::1]:7/m?db=1"),
        ("redis+cluster://korvet@h1:7,h2", "redis+cluster://korvet:p%40ss%2Fw%3Ard%25@h1:7,h2"),
    ):
        overrides = {"redis.url": url, "redis.password.file": str(file)}
        settings = load(None, {}, overrides).settings
        assert settings.redis_url == becomes
        assert parse_url(becomes).login.password == "p@ss/w:rd%"
        assert "p%40ss" not in repr(settings)


@pytest.mark.parametrize(
    ("url", "content", "says"),
    [
        ("", b"secret", "redis.url has to be set"),
        ("redis://user:secret@host", b"secret", "to have no password of its own"),
        ("redis://host", None, "No such file"),
        ("redis://host", b"\xff", "not UTF-8"),
        ("redis://host", b" \n", "it is empty"),
    ],
)
def test_a_file_without_a_password_for_redis_is_refused(
    tmp_path: Path, url: str, content: bytes | None, says: str
) -> None:
    file = tmp_path / "redis-password"
    if content is not None:
        file.write_bytes(content)
    error = refusal(overrides={"redis.url": url, "redis.password.file": str(file)})
    assert says in error
    assert str(file) in error
    assert "secret" not in error
