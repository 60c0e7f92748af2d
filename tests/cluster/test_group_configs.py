"""korvet/cluster/group_configs.py: what a group's configs say to a worker."""

from __future__ import annotations

from korvet.cluster.group_configs import GroupConfigs
from korvet.config.settings import Settings
from korvet.redis.keys import Keys
from tests.support.domain import Domain


def test_where_a_group_begins_is_what_another_worker_has_set_a_moment_ago(here: Domain) -> None:
    settings = Settings()
    mine, other = (GroupConfigs(here.redis, Keys("korvet"), settings) for _ in range(2))
    assert mine.share_reset("g") == "latest"
    other.alter("g", lambda _row: {"share.auto.offset.reset": "earliest"})
    assert mine.share_reset("g") == "earliest"
