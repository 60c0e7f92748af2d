"""deploy/redis, and the Redis of deploy/kubernetes: a real server takes these settings, and Korvet warns of nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from korvet.config.sources import load
from korvet.server.finding import Level
from korvet.server.supervisor import redis_check
from tests.deploy.files import DEPLOY, documents
from tests.deploy.pods import Manifest
from tests.support.redis_servers import embedded_server

pytestmark = pytest.mark.slow

CONFIG = DEPLOY / "redis/redis.conf"


def _options() -> list[str]:
    """Return what redis.conf sets as flags of the server, which come behind the tests' own."""
    lines = [line.split() for line in CONFIG.read_text().splitlines() if line and not line.startswith("#")]
    return [word.strip('"') for name, *values in lines for word in (f"--{name}", *values)]


def _arguments() -> list[str]:
    """Return the flags of the container in korvet.yaml, without its password and its directory."""
    pod = Manifest(documents(DEPLOY / "kubernetes/korvet.yaml")).pod("korvet-redis")
    (container,) = pod["spec"]["containers"]
    pairs = list(zip(container["args"][::2], container["args"][1::2], strict=True))
    assert ("--requirepass", "$(REDIS_PASSWORD)") in pairs
    return [word for pair in pairs if pair[0] not in {"--requirepass", "--dir"} for word in pair]


def test_the_users_file_gives_brokers_what_the_page_on_redis_lists() -> None:
    [admin, korvet] = (DEPLOY / "redis/users.acl").read_text().splitlines()
    page = (DEPLOY.parent / "docs/redis.md").read_text()
    [rules] = re.findall(r"ACL SETUSER korvet on >secret (.*?)\n\n", page, re.DOTALL)
    assert korvet.split() == ["user", "korvet", "on", ">KORVET_PASSWORD", *rules.replace("\\\n", " ").split()]
    assert admin.split()[:4] == ["user", "default", "on", ">ADMIN_PASSWORD"]


@pytest.mark.parametrize("options", [_options(), _arguments()], ids=["redis.conf", "korvet.yaml"])
def test_korvet_is_content_with_such_a_redis(options: list[str], tmp_path: Path) -> None:
    with embedded_server(*options) as url:
        settings = load(None, {}, {"redis.url": url, "data.dir": str(tmp_path)}).settings
        facts = redis_check.check(settings)
    assert facts.appendonly
    assert facts.appendfsync == "everysec"
    assert {finding.level for finding in facts.findings} == {Level.OK}


def test_what_is_set_by_a_comment_is_a_setting_too(tmp_path: Path) -> None:
    lines = CONFIG.read_text().splitlines()
    offered = [line[2:] for line in lines if re.fullmatch(r"# (?!bind|aclfile)[a-z-]+ \S+", line)]
    assert len(offered) >= 3
    # Where a build cannot do without a library it says so when this is switched on.
    flags = [word for line in offered if "defrag" not in line for word in f"--{line}".split()]
    with embedded_server(*flags) as url:
        assert url
