"""`korvet config`: what it prints, as a table and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from redis.exceptions import NoPermissionError

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
    found = json.loads(result.stdout)
    assert found["log.retention.ms"] == {"value": 5, "origin": "clients (cluster-wide)"}
    assert found["log.roll.ms"] == {"value": 8, "origin": "clients (broker)"}
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
    found = json.loads(printed["--json",].stdout)[name]
    assert found["value"].endswith(shown)
    assert found["origin"] == "command line"


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
