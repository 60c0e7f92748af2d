"""Redis URLs: every accepted form, every refusal, and no secret in any text."""

from __future__ import annotations

import pytest

from korvet.errors import ConfigError
from korvet.redis import url as redis_url
from korvet.redis.url import RedisAddress, Tls


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
        ("", "must begin with"),
        ("localhost:6379", "must begin with"),
        ("http://h", "must begin with"),
        ("redis://u:s3cret@h:port", "malformed"),
        ("redis://u:s3cret@h:99999", "malformed"),
        ("redis://u:s3cret@[::1", "malformed"),
        ("redis://u:s3cret@h:0", "port"),
        ("redis://u:s3cret@h/one", "not a number"),
        ("redis://u:s3cret@h?db=-1", "not a number"),
        ("redis://h?passwort=s3cret", "unknown option 'passwort'"),
        ("redis://h?ssl_ca_certs=/s3cret", "unknown option 'ssl_ca_certs'"),
        ("rediss://h?ssl_cert_reqs=s3cret", "ssl_cert_reqs"),
        ("rediss://h?ssl_check_hostname=s3cret", "ssl_check_hostname"),
        ("unix://u:s3cret@host/path", "absolute path"),
        ("unix://", "absolute path"),
        ("unix:///path?ssl_ca_certs=s3cret", "unknown option"),
    ],
)
def test_a_wrong_url_is_refused_without_its_secrets(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        redis_url.parse(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://u:s3cret@db:7000/1", "db:7000"),
        ("redis://:s3cret@[::1]", "[::1]:6379"),
        ("unix://u:s3cret@/run/r.sock", "/run/r.sock"),
    ],
)
def test_an_address_in_a_message_shows_no_credentials(url: str, text: str) -> None:
    address = redis_url.parse(url)
    assert str(address) == text
    assert "s3cret" not in repr(address)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://u:s3cret@db:7000/1", "redis://db:7000/1"),
        ("rediss://:s3cret@[::1]?ssl_keyfile=/s3cret", "rediss://[::1]:6379/0"),
        ("unix://u:s3cret@/run/r.sock?db=2", "unix:///run/r.sock?db=2"),
    ],
)
def test_the_place_of_a_database_is_a_url_without_credentials(url: str, place: str) -> None:
    assert redis_url.parse(url).safe_url == place
