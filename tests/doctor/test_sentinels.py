"""`korvet doctor` with Sentinels: each fault is provoked, and is named with what to change."""

from __future__ import annotations

from contextlib import closing

import pytest

from korvet.doctor import redis_server, sentinels
from korvet.redis.url import parse_url
from tests.doctor.test_doctor import bad, settings
from tests.support.processes import wait_until
from tests.support.sentinels import Sentinel, watched

pytestmark = pytest.mark.slow


def test_sentinels_and_what_they_could_promote() -> None:
    with watched(replicas=1) as setup:
        url = setup.url
        result = {item.what: item for item in redis_server.examine(settings(redis__url=url))}
        port = setup.master().port
        assert result["sentinels"].said == f"3 of 3 answer and name 127.0.0.1:{port}"
        assert result["failover"].said == "1 replicas could be promoted"
        result = bad(redis_server.examine(settings(redis__url=url, replicas="1")))
        assert result["failover"].said.startswith("acks=all waits for 1 replicas, and a failover leaves 0")
        result = bad(redis_server.examine(settings(redis__url=setup.url_by(setup.sentinels[0].address))))
        assert "names one of 3" in result["sentinels"].said
        with closing(
            Sentinel(setup.replicas()[0].port, "sentinel myid " + "a" * 40, down_ms=600_000)
        ) as stale:
            url_of_both = setup.url_by(setup.sentinels[0].address, stale.address)
            result = bad(sentinels.examine(parse_url(url_of_both), settings(redis__url=url_of_both)))
            assert "they disagree about the master" in result["sentinels"].said
        setup.sentinels[1].kill()
        result = bad(redis_server.examine(settings(redis__url=url)))
        assert result["sentinels"].said == f"{setup.sentinels[1].address}: Connection refused"
        setup.sentinels[2].kill()
        master_url = parse_url(url)
        wait_until(
            lambda: any("NOQUORUM" in item.said for item in sentinels.examine(master_url, settings())),
            "too few Sentinels are left",
        )


def test_a_master_without_replicas_cannot_be_replaced() -> None:
    with watched(replicas=0, sentinels=1) as setup:
        result = bad(sentinels.examine(parse_url(setup.url), settings()))
        assert result["failover"].said == "Sentinels know no replica that they could promote"
