"""Log lines: one per event, whatever is in it; and no secrets."""

from __future__ import annotations

import json
import logging
import re
import warnings

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from korvet.config.settings import Settings
from korvet.logs import PAUSE_SECONDS, Log, RateLimitedLogger, configure, set_level

pytestmark = pytest.mark.usefixtures("logging_as_before")

log = Log("korvet.test")


def fail(error: Exception) -> None:
    """Raise it."""
    raise error


@pytest.fixture
def text(capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    configure(Settings(), "worker-1")
    return capsys


@pytest.fixture
def json_lines(capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    configure(Settings(log_format="json"), "worker-1")
    return capsys


def test_a_text_line_has_time_level_process_event_and_fields(text: pytest.CaptureFixture[str]) -> None:
    log.info(
        "connection closed", peer="10.0.0.1:50000", client_id="my app", requests=3, idle=None, clean=True
    )
    line = text.readouterr().err
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    worker-1 connection closed "
        r'peer=10\.0\.0\.1:50000 client_id="my app" requests=3 idle=null clean=true\n',
        line,
    )


def test_a_json_line_has_the_same(json_lines: pytest.CaptureFixture[str]) -> None:
    log.warning("connection closed", peer="10.0.0.1:50000", requests=3, ratio=0.5, idle=None)
    line = json.loads(json_lines.readouterr().err)
    assert list(line) == ["time", "level", "process", "logger", "event", "peer", "requests", "ratio", "idle"]
    del line["time"]
    assert line == {
        "level": "warning",
        "process": "worker-1",
        "logger": "korvet.test",
        "event": "connection closed",
        "peer": "10.0.0.1:50000",
        "requests": 3,
        "ratio": 0.5,
        "idle": None,
    }


def test_a_field_cannot_pass_itself_off_as_the_time_or_the_process(
    json_lines: pytest.CaptureFixture[str],
) -> None:
    log.info("event", time="yesterday", process="supervisor")
    assert json.loads(json_lines.readouterr().err)["process"] == "worker-1"


def test_a_client_id_with_line_breaks_and_escape_sequences_stays_in_its_line(
    text: pytest.CaptureFixture[str],
) -> None:
    log.info("hello", client_id='a\nb\r\x1b[2J\u2028" reason=fake', raw=b"\xff\x00\n")
    line = text.readouterr().err
    assert line.count("\n") == 1
    assert line.rstrip("\n").isprintable()
    assert 'client_id="a\\nb\\r\\u001b[2J\\u2028\\" reason=fake"' in line


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    event=st.text(),
    value=st.one_of(
        st.text(), st.binary(), st.floats(), st.integers(), st.none(), st.lists(st.text(), max_size=3)
    ),
)
def test_any_event_and_value_is_one_line_in_both_forms(
    capsys: pytest.CaptureFixture[str], event: str, value: object
) -> None:
    capsys.readouterr()
    configure(Settings(log_format="json"), "ops")
    log.info(event, value=value)
    line = capsys.readouterr().err
    assert line.endswith("\n")
    assert len(line.splitlines()) == 1
    assert "value" in json.loads(line)
    configure(Settings(), "ops")
    log.info(event, value=value)
    line = capsys.readouterr().err
    assert line.endswith("\n")
    assert line[:-1].isprintable()


def test_a_long_value_is_cut(text: pytest.CaptureFixture[str]) -> None:
    log.info("hello", client_id="x" * 32_000, raw=b"y" * 32_000)
    assert len(text.readouterr().err) < 2_500


def test_passwords_of_urls_are_masked_in_event_field_and_traceback(text: pytest.CaptureFixture[str]) -> None:
    url = "redis://user:hunter2@localhost:6379"
    event = f"connecting to {url}"
    log.info(event, url=url)
    try:
        fail(ConnectionError(f"cannot reach {url}"))
    except ConnectionError:
        log.exception("bug")
    assert "hunter2" not in text.readouterr().err


def test_a_traceback_stays_in_the_line_of_its_event(json_lines: pytest.CaptureFixture[str]) -> None:
    try:
        fail(ValueError("two\nlines"))
    except ValueError:
        log.exception("cannot serve a request", api="Fetch")
    [line] = json_lines.readouterr().err.splitlines()
    assert json.loads(line)["traceback"].startswith("Traceback (most recent call last):\n")


def test_lines_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_level="warning"), "keeper")
    log.debug("detail")
    log.info("as it should be")
    log.warning("look at this")
    log.error("broken")
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["WARNING", "ERROR"]


def test_the_last_configuration_holds_and_lines_are_not_doubled(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(), "supervisor")
    configure(Settings(), "worker-2")
    log.info("started")
    [line] = capsys.readouterr().err.splitlines()
    assert " worker-2 started" in line


def test_lines_and_warnings_of_other_packages_have_the_same_form(text: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("elsewhere").error("lost %s\nof %d", "two", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old call", DeprecationWarning, stacklevel=1)
    error, warning = text.readouterr().err.splitlines()
    assert error.endswith("ERROR   worker-1 lost two\\nof 3")
    assert "DeprecationWarning: old call" in warning


def test_another_level_counts_from_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_level="error"), "keeper")
    log.info("before")
    set_level(Settings(log_level="info"))
    log.info("after")
    [line] = capsys.readouterr().err.splitlines()
    assert " keeper after" in line.replace("    ", " ")


def test_single_loggers_have_levels_of_their_own(text: pytest.CaptureFixture[str]) -> None:
    below, beside = Log("korvet.test.below"), Log("korvet.other")
    set_level(Settings(log_level="warning", log_levels="korvet.test=debug, korvet.test.below=error"))
    for item in (log, below, beside):
        item.debug("fine", of=item._logger.name)
        item.error("coarse", of=item._logger.name)
    lines = [line.split(" worker-1 ")[1] for line in text.readouterr().err.splitlines()]
    assert lines == [
        "fine of=korvet.test",
        "coarse of=korvet.test",
        "coarse of=korvet.test.below",
        "coarse of=korvet.other",
    ]
    # What is not named any more is as all the others.
    set_level(Settings(log_level="warning"))
    log.info("fine")
    below.warning("coarse")
    assert text.readouterr().err.count("\n") == 1


def test_the_logger_of_all_may_be_named_and_has_its_level_again_afterwards(
    text: pytest.CaptureFixture[str],
) -> None:
    set_level(Settings(log_level="warning", log_levels="root=error"))
    logging.getLogger("other").warning("nothing")
    set_level(Settings(log_level="warning"))
    logging.getLogger("other").info("nothing either")
    logging.getLogger("other").warning("this")
    [line] = text.readouterr().err.splitlines()
    assert line.endswith("this")


def test_one_of_each_kind_is_written_in_a_while_and_says_how_many_were_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    rare = RateLimitedLogger(Log("korvet.test"), lambda: now)

    def lines() -> list[object]:
        result = [vars(record)["korvet_fields"] for record in caplog.records]
        caplog.clear()
        return result

    with caplog.at_level(logging.INFO):
        for number in range(3):
            rare.warning("Fetch", "away", number=number)
        rare.warning("Produce", "away", number=9)
        assert lines() == [{"number": 0}, {"number": 9}]
        now += PAUSE_SECONDS
        rare.warning("Fetch", "away", number=4)
        rare.warning("Produce", "away", number=5)
        assert lines() == [{"number": 4, "left_out_before": 2}, {"number": 5}]
        now += PAUSE_SECONDS
        rare.warning("Fetch", "away", number=6)
        assert lines() == [{"number": 6}]


def test_a_pause_may_be_longer(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    rare = RateLimitedLogger(Log("korvet.test"), lambda: now, pause_seconds=60)
    with caplog.at_level(logging.INFO):
        for number in range(7):
            rare.warning("lake", "missing", number=number)
            now += 10
    result = [vars(record)["korvet_fields"] for record in caplog.records]
    assert result == [{"number": 0}, {"number": 6, "left_out_before": 5}]


def test_a_burst_of_a_kind_is_written(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    bursts = RateLimitedLogger(Log("korvet.test"), lambda: now, burst=3)
    with caplog.at_level(logging.INFO):
        for number in range(5):
            bursts.info("slow", "closed", number=number)
            now += PAUSE_SECONDS / 5
        bursts.info("slow", "closed", number=5)
    result = [vars(record)["korvet_fields"] for record in caplog.records]
    assert result == [{"number": 0}, {"number": 1}, {"number": 2}, {"number": 5, "left_out_before": 2}]
