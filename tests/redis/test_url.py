"""Redis URLs: every accepted form, every refusal, and no secret in any text."""

from __future__ import annotations

from pathlib import Path

import pytest

from korvet.errors import ConfigError
from korvet.redis import url as redis_url
from korvet.redis.url import RedisAddress, RedisTarget, Tls


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", RedisAddress(host="localhost", port=6379)),
        ("redis://db.example", RedisAddress(host="db.example", port=6379)),
        ("redis://db.example:7000/3", RedisAddress(host="db.example", port=7000, db=3)),
        ("redis://db.example?db=4", RedisAddress(host="db.example", port=6379, db=4)),
        ("redis://[::1]:7000", RedisAddress(host="::1", port=7000)),
        ("redis://:word@h", RedisAddress(host="h", port=6379, password="word")),
        ("redis://u:p%40%3a%2F@h/1", RedisAddress(host="h", port=6379, username="u", password="p@:/", db=1)),
        ("unix:///run/redis.sock", RedisAddress(path="/run/redis.sock")),
        ("unix:///a%20b.sock?db=2", RedisAddress(path="/a b.sock", db=2)),
        ("unix://u:p@/run/r.sock", RedisAddress(path="/run/r.sock", username="u", password="p")),
        ("rediss://h", RedisAddress(host="h", port=6379, tls=Tls())),
        ("rediss://h?ssl_ca_certs=/ca.pem", RedisAddress(host="h", port=6379, tls=Tls(ca_certs="/ca.pem"))),
        (
            "rediss://h?ssl_cert_reqs=none",
            RedisAddress(host="h", port=6379, tls=Tls(verify=False, check_hostname=False)),
        ),
        (
            "rediss://h?ssl_cert_reqs=required&ssl_check_hostname=false",
            RedisAddress(host="h", port=6379, tls=Tls(check_hostname=False)),
        ),
        (
            "rediss://h?ssl_certfile=/c.pem&ssl_keyfile=/k.pem",
            RedisAddress(host="h", port=6379, tls=Tls(certfile="/c.pem", keyfile="/k.pem")),
        ),
    ],
)
def test_every_documented_form_is_read(url: str, address: RedisAddress) -> None:
    assert redis_url.parse(url) == address


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        *((url, "must begin with") for url in ("", "localhost:6379", "http://h", "sentinel://h/m")),
        ("redis+http://h", "must begin with"),
        ("unix+sentinel:///run/r.sock", "must begin with"),
        ("redis://u:s3cret@h1,h2", "names one server"),
        ("redis://u:12/s3cret@h", "not a number"),
        ("redis+sentinel://u:s3cret@h1,h2", "the master is missing"),
        ("redis+sentinel://:26/s3cret@h/name", "the master is missing"),
        *((f"redis+sentinel://u:s3cret@{hosts}/m", "malformed") for hosts in ("h1,,h2", "::1:26379")),
        ("redis+sentinel://u:s3cret@h1:0,h2/m", "port"),
        ("redis+sentinel://h/m?db=s3cret", "not a number"),
        ("redis+sentinel://h/m?sentinel_username=u", "no sentinel_password"),
        ("redis+sentinel://h/m?sentinel_password=s3cret&sentinel_password_file=/f", "one at most"),
        ("redis+sentinel://h/m?sentinel_password_file=/nowhere", "No such file"),
        ("redis+sentinel://h/m?ssl_ca_certs=/s3cret", "unknown option 'ssl_ca_certs'"),
        ("rediss+sentinel://h/m?sentinel_ssl_cert_reqs=s3cret", "sentinel_ssl_cert_reqs"),
        *((f"redis+cluster://u:s3cret@h1,h2{db}", "database 0 only") for db in ("/1", "?db=2")),
        ("redis+cluster://u:s3cret@h1/s3cret", "not a number"),
        ("redis+cluster://h?sentinel_password=s3cret", "unknown option 'sentinel_password'"),
        *((f"redis://u:s3cret@{host}", "malformed") for host in ("h:port", "h:99999", "[::1")),
        ("redis://u:s3cret@h:0", "port"),
        *((f"redis://u:s3cret@{rest}", "not a number") for rest in ("h/one", "h?db=-1")),
        ("redis://h?passwort=s3cret", "unknown option 'passwort'"),
        ("redis://h?ssl_ca_certs=/s3cret", "unknown option 'ssl_ca_certs'"),
        *((f"rediss://h?{name}=s3cret", name) for name in ("ssl_cert_reqs", "ssl_check_hostname")),
        *((url, "absolute path") for url in ("unix://u:s3cret@host/path", "unix://")),
        ("unix:///path?ssl_ca_certs=s3cret", "unknown option"),
    ],
)
def test_a_wrong_url_is_refused_without_its_secrets(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        redis_url.parse_url(url)
    assert "s3cret" not in str(caught.value)


NOBODY = RedisAddress()


def sentinels(*addresses: RedisAddress, login: RedisAddress = NOBODY) -> RedisTarget:
    """Return the target of Sentinels that watch the master `m`."""
    return RedisTarget(kind="sentinel", addresses=addresses, master_name="m", login=login)


def cluster(*addresses: RedisAddress, login: RedisAddress = NOBODY) -> RedisTarget:
    return RedisTarget(kind="cluster", addresses=addresses, login=login)


SENTINEL = RedisAddress(host="h", port=26379)
KORVET = RedisAddress(username="u", password="p,@")
CA = Tls(ca_certs="/ca.pem")


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("redis+sentinel://h/m", sentinels(SENTINEL)),
        (
            "redis+sentinel://h1:7000,[::1],[::2]:7002/m?db=3",
            sentinels(
                RedisAddress(host="h1", port=7000),
                RedisAddress(host="::1", port=26379),
                RedisAddress(host="::2", port=7002),
                login=RedisAddress(db=3),
            ),
        ),
        ("redis+sentinel://u:p%2C%40@h/m", sentinels(SENTINEL, login=KORVET)),
        (
            "redis+sentinel://u:p%2C%40@h/m?sentinel_username=s&sentinel_password=q%26",
            sentinels(RedisAddress(host="h", port=26379, username="s", password="q&"), login=KORVET),
        ),
        (
            "rediss+sentinel://h/m?ssl_ca_certs=/ca.pem",
            sentinels(RedisAddress(host="h", port=26379, tls=CA), login=RedisAddress(tls=CA)),
        ),
        (
            "rediss+sentinel://h/m?ssl_ca_certs=/ca.pem&sentinel_ssl_check_hostname=false",
            sentinels(
                RedisAddress(host="h", port=26379, tls=Tls(check_hostname=False)), login=RedisAddress(tls=CA)
            ),
        ),
        (
            "redis+cluster://h1,h2:7000",
            cluster(RedisAddress(host="h1", port=6379), RedisAddress(host="h2", port=7000)),
        ),
        (
            "rediss+cluster://u:p%2C%40@[::1]/0?ssl_ca_certs=/ca.pem",
            cluster(
                RedisAddress(host="::1", port=6379, username="u", password="p,@", tls=CA),
                login=RedisAddress(username="u", password="p,@", tls=CA),
            ),
        ),
    ],
)
def test_sentinels_and_clusters_are_read(url: str, target: RedisTarget) -> None:
    assert redis_url.parse_url(url) == target
    with pytest.raises(ConfigError, match=f"one server is needed here, not a {target.kind}"):
        redis_url.parse(url)


def test_a_server_that_sentinels_name_is_connected_as_the_url_says() -> None:
    target = redis_url.parse_url("rediss+sentinel://u:p@h/m?db=2&sentinel_password=q&ssl_ca_certs=/ca.pem")
    named = RedisAddress(host="10.0.0.1", port=6380, username="u", password="p", db=2, tls=CA)
    assert target.at("10.0.0.1", 6380) == named


def test_a_plus_sign_stands_for_itself() -> None:
    target = redis_url.parse_url("redis+sentinel://u:p+q@h/m?sentinel_password=r+s%2Bt")
    assert (target.login.password, target.addresses[0].password) == ("p+q", "r+s+t")


def test_the_password_of_sentinels_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("q&/ \n", encoding="utf-8")
    [sentinel] = redis_url.parse_url(f"redis+sentinel://h/m?sentinel_password_file={file}").addresses
    assert sentinel.password == "q&/"


@pytest.mark.parametrize(
    ("url", "text", "place"),
    [
        ("redis://u:s3cret@db:7000/1", "db:7000", "redis://db:7000/1"),
        ("rediss://:s3cret@[::1]?ssl_keyfile=/s3cret", "[::1]:6379", "rediss://[::1]:6379/0"),
        ("unix://u:s3cret@/run/r.sock?db=2", "/run/r.sock", "unix:///run/r.sock?db=2"),
        (
            "redis+sentinel://u:s3cret@h1,[::1]:7/m?db=2&sentinel_password=s3cret",
            "m (Sentinels h1:26379, [::1]:7)",
            "redis+sentinel://h1:26379,[::1]:7/m?db=2",
        ),
        ("rediss+cluster://u:s3cret@h1,h2:7", "cluster h1:6379, h2:7", "rediss+cluster://h1:6379,h2:7"),
    ],
)
def test_a_target_in_a_message_and_its_place_show_no_credentials(url: str, text: str, place: str) -> None:
    target = redis_url.parse_url(url)
    assert (str(target), target.safe_url) == (text, place)
    assert "s3cret" not in repr(target).replace("/s3cret", "")
