"""`korvet config`: its flags, which `korvet serve` shares, and what it prints, as a table and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from redis.exceptions import NoPermissionError

from korvet.cli.config import FLAGS
from korvet.config.settings import SETTINGS
from korvet.redis.permissions import rules
from tests.cli.commands import korvet, refused, run
from tests.support import redis_servers

STORE = (
    "AWS_ACCESS_KEY_ID=hunter2,AWS_SECRET_ACCESS_KEY=hunter2==,aws_session_token=hunter2,"
    "azure_storage_account_key=hunter2,sas_token=hunter2,google_service_account_key=hunter2,"
    "AWS_REGION=eu-west-1,AWS_ALLOW_HTTP=true,endpoint=http://me:hunter2@store:9000"
)
FORMS: tuple[tuple[str, ...], ...] = ((), ("--json",))


def test_the_table_shows_each_setting_with_value_and_origin() -> None:
    result = korvet("config", "--listen", "[::1]:9092", environ={"KORVET_WORKERS": "2"})
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["listen", "[::1]:9092", "command", "line"] in lines
    assert ["workers", "2", "environment"] in lines
    assert ["redis.url", "default"] in lines
    assert {line[0] for line in lines if line} >= set(SETTINGS)


def test_what_clients_have_altered_is_shown_as_redis_has_it(redis_url: str) -> None:
    with redis_servers.connected(redis_url) as client:
        client.hset("{korvet:topics}:brokers", "default", '{"log.retention.ms": "5", "log.roll.ms": "6"}')
        client.hset("{korvet:topics}:brokers", "0", '{"log.roll.ms": "8"}')
    result = korvet("config", "--redis-url", redis_url, "--set", "log.retention.ms=7", "--json")
    results = json.loads(result.stdout)
    assert results["log.retention.ms"] == {"value": 5, "origin": "clients (cluster-wide)"}
    assert results["log.roll.ms"] == {"value": 8, "origin": "clients (broker)"}
    assert "altered are not shown: " in korvet("config", "--redis-url", "redis://127.0.0.1:1").stderr


def test_a_long_value_is_neither_cut_nor_wrapped_where_the_output_is_no_terminal() -> None:
    path = "/srv/" + "x" * 200
    assert f" {path} " in korvet("config", "--data-dir", path).stdout


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("redis.url", "redis://user:hunter2@localhost:6379", "redis://user:***@localhost:6379"),
        (
            "lake.iceberg.catalog",
            "type=sql,uri=postgresql+psycopg://me:hunter2@db/iceberg,credential=hunter2,s3.secret-access-key=hunter2",
            "type=sql,uri=postgresql+psycopg://me:***@db/iceberg,credential=***,s3.secret-access-key=***",
        ),
        (
            "lake.storage.options",
            STORE,
            ",AWS_REGION=eu-west-1,AWS_ALLOW_HTTP=true,endpoint=http://me:***@store:9000",
        ),
    ],
)
def test_only_what_is_no_secret_is_shown_in_every_form(name: str, value: str, shown: str) -> None:
    printed = {form: korvet("config", "--set", f"{name}={value}", *form) for form in FORMS}
    for result in printed.values():
        assert result.returncode == 0, result.stderr
        assert "hunter2" not in result.stdout + result.stderr
    results = json.loads(printed["--json",].stdout)[name]
    assert results["value"].endswith(shown)
    assert results["origin"] == "command line"


def test_a_value_of_secrets_that_is_refused_is_not_shown() -> None:
    given = {"KORVET_LAKE_STORAGE_OPTIONS": "AWS_SECRET_ACCESS_KEY=hun,hunter2"}
    message = refused("config", environ=given)
    assert "Invalid value '***' for configuration lake.storage.options (environment)" in message


def test_redis_acl_prints_the_user_that_the_page_on_redis_lists() -> None:
    result = korvet("redis-acl", "--user", "broker-1", "--namespace", "prod")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["user", "broker-1", "on", "resetpass", *rules("prod")]
    page = (Path(__file__).parents[2] / "docs/redis.md").read_text(encoding="utf-8")
    [listed] = re.findall(r"ACL SETUSER korvet on >secret (.*?)\n\n", page, re.DOTALL)
    assert listed.replace("\\\n", " ").split() == rules("korvet")


def test_redis_acl_prints_a_user_that_redis_takes_and_no_password(redis_url: str) -> None:
    printed = run("redis-acl", "--password-file", "/dev/stdin", given=b"hunter2\n").stdout.decode()
    assert "hunter2" not in printed
    with redis_servers.connected(redis_url) as client:
        admin = redis_servers.servers_of(client)[0]
        admin.execute_command("ACL", "SETUSER", *printed.split()[1:])
        assert admin.execute_command("AUTH", "korvet", "hunter2")
        with pytest.raises(NoPermissionError):
            admin.keys()


def test_redis_acl_refuses_what_would_be_another_rule() -> None:
    for flag in ("--user", "--namespace"):
        result = korvet("redis-acl", flag, "x +@all")
        assert (result.returncode, "is not a name" in result.stderr) == (2, True)
    assert run("redis-acl", "--password-file", "/dev/stdin", given=b"\n").returncode == 2


def effective(*arguments: str, environ: dict[str, str] | None = None) -> dict[str, tuple[object, str]]:
    """Return name -> (value, origin) of what these flags come to."""
    result = korvet("config", "--json", *arguments, environ=environ)
    assert result.returncode == 0, result.stderr
    # No Redis is where some of these tests say.
    assert result.stderr.partition(":")[0] in ("", "Values that clients have altered are not shown")
    return {name: (row["value"], row["origin"]) for name, row in json.loads(result.stdout).items()}


def test_each_flag_sets_its_setting() -> None:
    values = {
        "--listen": "127.0.0.1:1",
        "--advertised": "[::1]:2",
        "--redis-url": "unix:///run/redis.sock",
        "--data-dir": "/srv/korvet",
        "--workers": "3",
        "--broker-id": "4",
        "--ops-listen": "",
    }
    assert values.keys() == FLAGS.keys()
    result = effective(*(part for flag in values.items() for part in flag))
    for flag, (setting, _) in FLAGS.items():
        assert (str(result[setting][0]), result[setting][1]) == (values[flag], "command line")


def test_the_last_set_of_a_name_wins_and_a_value_may_hold_an_equals_sign() -> None:
    result = effective("--set", "workers=1", "--set", "workers=2", "--set", "redis.url=unix:///r?db=1")
    assert result["workers"] == (2, "command line")
    assert result["redis.url"] == ("unix:///r?db=1", "command line")


@pytest.mark.parametrize("command", ["serve", "config"])
def test_a_mistake_costs_one_line_and_exit_code_2(command: str) -> None:
    line = "unknown setting 'num.partition' (command line); did you mean num.partitions?"
    assert refused(command, "--set", "num.partition=1") == f"korvet: {line}\n"
    line = "workers is given twice: by its own flag and by --set"
    assert refused(command, "--set", "workers=1", "--workers", "2") == f"korvet: {line}\n"


def test_a_file_in_the_working_directory_is_not_read_unasked(tmp_path: Path) -> None:
    (tmp_path / "korvet.toml").write_text("this is no TOML")
    result = korvet("config", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
