"""korvet/spark/options.py: the options for reading, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from korvet.errors import ConfigError
from korvet.lake.table import Lake
from korvet.spark.options import EARLIEST, LATEST, ReadEdge, read_options

NEEDED = {"redis.url": "redis://127.0.0.1/", "topic": "orders"}
CHOICES = ("subscribe", "subscribePattern", "assign")


def test_options_are_read_in_any_case_and_with_their_defaults() -> None:
    result = read_options({"REDIS.URL": "redis://127.0.0.1/", "topic": "orders"})
    assert (result.source.redis_url, result.source.namespace) == ("redis://127.0.0.1/", "korvet")
    assert (result.source.lake, result.starting, result.ending) == (Lake(), None, ReadEdge("latest"))
    assert result.fail_on_data_loss
    assert (result.source.replicas, result.source.min_insync_replicas) == (0, 1)
    given: dict[str, Any] = {
        "lake": "s3://bucket/lake",
        "lake.storage.options": "region=eu,secret=a=b",
        "startingOffsets": '{"orders": {"0": 23, "1": -1, "2": -2}}',
        "endingTimestamp": "1000",
        "maxRecordsPerTrigger": "10",
        "failOnDataLoss": "False",
        "replicas": "1",
        "min.insync.replicas": "2",
    }
    result = read_options(NEEDED | given)
    assert result.source.lake.storage_options == {"region": "eu", "secret": "a=b"}
    assert (result.source.replicas, result.source.min_insync_replicas) == (1, 2)
    assert result.starting is not None
    assert result.starting.offsets == {"orders": {0: 23, 1: LATEST, 2: EARLIEST}}
    assert result.ending.timestamp == 1000
    assert (result.trigger.records_max, result.fail_on_data_loss) == (10, False)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("90 s", 90), ("2H", 7200), ("250ms", 0.25), ("1500", 1.5), ("1d", 86400)],
)
def test_a_delay_is_a_time_as_sparks(text: str, seconds: float) -> None:
    assert read_options(NEEDED | {"maxTriggerDelay": text}).trigger.delay_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("topics", "a", "unknown option topics; known are redis.url"),
        ("topic", "", "one of the options topic, subscribe, subscribePattern, assign is required, and no"),
        ("subscribe", "bills", "one of the options topic, subscribe, subscribePattern, assign is required"),
        ("startingOffsets", "first", "is not earliest, latest or"),
        ("startingOffsets", '{"orders": {"x": 1}}', "is not earliest, latest or"),
        ("startingOffsets", '{"orders": {"0": "1"}}', "is not earliest, latest or"),
        ("endingOffsets", '{"orders": {"0": -3}}', "is not earliest, latest or"),
        ("endingOffsets", "earliest", "cannot be earliest"),
        ("startingTimestamp", "yesterday", "no timestamp in milliseconds"),
        ("startingOffsetsByTimestamp", '{"orders": {"0": -1}}', "is not as .*, in milliseconds"),
        ("startingOffsetsByTimestampStrategy", "earliest", "neither error nor latest"),
        ("maxRecordsPerTrigger", "0", "no positive number"),
        ("minPartitions", "none", "no positive number"),
        ("maxTriggerDelay", "15 minutes", "is no time as 15m"),
        ("versionAsOf", "-1", "is no version of a table"),
        ("timestampAsOf", "yesterday", "is no time as 2026"),
        ("failOnDataLoss", "maybe", "neither true nor false"),
        ("lake.storage.options", "region", "not NAME=VALUE"),
        ("subscribe", " , ", "names no topic"),
        ("subscribePattern", "(", "is no regular expression"),
        ("assign", '{"orders": []}', "is not as"),
        ("assign", '{"orders": 1}', "is not as"),
    ],
)
def test_a_wrong_option_is_one_clear_error(option: str, value: str, said: str) -> None:
    needed = {"redis.url": NEEDED["redis.url"]} if "is required" not in said and option in CHOICES else NEEDED
    with pytest.raises(ValueError, match=said):
        read_options(needed | {"lake": "/lake", option: value})


def test_without_a_redis_url_the_log_is_that_of_the_embedded_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"topic": "orders"}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError,
        match=rf"redis\.url is required: no embedded server runs on {tmp_path}/korvet-data \(data\.dir\)",
    ):
        read_options(given)
    for directory in (tmp_path / "korvet-data", tmp_path / "others data"):
        directory.mkdir()
        (directory / "server.sock").touch()
    assert read_options(given).source.redis_url == f"unix://{tmp_path}/korvet-data/server.sock"
    result = read_options(given | {"data.dir": "./others data"})
    assert result.source.redis_url == f"unix://{tmp_path}/others%20data/server.sock"


def test_a_password_is_read_from_a_file_and_no_text_of_the_options_has_it(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("hunter2\n")
    given = {
        "topic": "orders",
        "redis.url": "rediss://korvet@h/1?ssl_ca_certs=/ca.pem",
        "redis.password.file": str(file),
    }
    result = read_options(given | {"lake": "s3://lakes", "lake.storage.options": "KEY=store-key"})
    assert result.source.redis_url == "rediss://korvet:hunter2@h/1?ssl_ca_certs=/ca.pem"
    assert "LakeSource('korvet', Lake('s3://lakes'))" in repr(result)
    assert "hunter2" not in repr(result)
    assert "store-key" not in repr(result)
    with pytest.raises(ConfigError, match=r"redis\.url has to be set, and to have no password of its own"):
        read_options(given | {"redis.url": "redis://:other-secret@h"})


def test_an_end_is_given_in_one_way_only() -> None:
    for one, other in (
        ({"startingOffsets": "earliest"}, {"startingTimestamp": "1"}),
        ({"endingOffsets": "latest"}, {"endingOffsetsByTimestamp": '{"orders": {"0": 1}}'}),
        ({"maxRecordsPerTrigger": "1"}, {"maxOffsetsPerTrigger": "1"}),
        ({"versionAsOf": "1"}, {"timestampAsOf": "2026-11-01"}),
    ):
        with pytest.raises(ValueError, match="exclude each other"):
            read_options(NEEDED | one | other)
    with pytest.raises(ValueError, match="is more than the maximum of 5"):
        read_options(NEEDED | {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"})
