"""Who may use the console, and who may change something by it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from korvet.config.settings import Settings
from korvet.console.access import AllowedHosts, Guard
from korvet.console.http import Request
from tests.support.broker import Broker
from tests.support.console import TOKEN, Caller


def request(**headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request("GET", "/api/topics", named, b"", "127.0.0.1")


def allowed(settings: Settings, host: str) -> bool:
    return AllowedHosts(settings).refuse(request(host=host)) is None


OWN = "127.0.0.1 127.0.0.1:9093 [::1]:9093 10.1.2.3:80 localhost:9093 LocalHost. a.localhost:1"
STRANGE = (
    "evil.example evil.example:9093 127.0.0.1.evil.example localhost.evil.example :9093"
    " user@127.0.0.1 127.0.0.1/x 127.0.0.1:x [::1 evil.example#127.0.0.1 0x7f.1"
)


def test_addresses_and_the_machines_own_names_are_answered_and_no_other_host() -> None:
    own, strange = [*OWN.split(), socket.gethostname()], [*STRANGE.split(), "", "127.0.0.1 "]
    assert [host for host in own + strange if allowed(Settings(), host)] == own


def test_host_names_can_be_added_by_a_setting() -> None:
    settings = Settings(ops_allowed_hosts="korvet.example, Console.Example")
    assert allowed(settings, "korvet.example:9093")
    assert allowed(settings, "console.example")
    assert not allowed(settings, "other.example")
    assert allowed(Settings(ops_allowed_hosts="*"), "other.example")
    assert not allowed(Settings(ops_allowed_hosts="*"), "user@other.example")


def test_other_sites_may_link_to_pages_but_not_read_data() -> None:
    guard = Guard(Settings())
    for headers in (
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9094"},
    ):
        other_site = request(host="localhost:9093", **headers)
        assert guard.refuse(other_site, for_data=True) is not None, headers
        assert guard.refuse(other_site, for_data=False) is None, headers
    for headers in (
        {"sec_fetch_site": "same-origin", "origin": "http://localhost:9093"},
        # A proxy that speaks TLS stands before it.
        {"origin": "https://localhost:9093"},
        {"sec_fetch_site": "none"},
    ):
        assert guard.refuse(request(host="localhost:9093", **headers), for_data=True) is None, headers


@pytest.mark.slow
def test_rebound_names_and_other_sites_get_nothing_while_probes_do(console: Caller) -> None:
    for path in ("/", "/api/overview", "/api/topics", "/console/app.js", "/metrics", "/nothing"):
        refused = console.call("GET", path, Host="evil.example:9093")
        assert refused.status == 403
        assert refused.body == b"Forbidden: unknown host name; ops.allowed.hosts lists those allowed\n"
    assert console.call("GET", "/api/topics", Sec_Fetch_Site="cross-site").status == 403
    assert console.call("POST", "/api/topics", {"name": "x"}, Origin="http://evil.example").status == 403
    for path in ("/healthz", "/readyz"):
        assert console.call("GET", path, Host="evil.example:9093").status == 200
    for host in ("10.1.2.3:9093", "[::1]:9093", "localhost"):
        assert console.call("GET", "/metrics", Host=host).status == 200


CHANGES = [
    ("POST", "topics"),
    ("DELETE", "topics"),
    ("POST", "topics/configs"),
    ("POST", "topics/partitions"),
    ("POST", "groups/offsets"),
    ("DELETE", "groups"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_changes_require_the_token(
    broker: Broker, console: Caller, name: str, method: str, path: str
) -> None:
    body = {"name": name}
    for token in (None, "", "wrong", TOKEN[:-1], f"{TOKEN}x", "ÿ" * 40):
        reply = Caller(broker.ops_address, token).change(method, path, body)
        assert reply.status == 401, token
        assert reply.headers["www-authenticate"] == "Bearer"
    # With it another answer comes: of what is asked for.
    assert console.change(method, path, body).status in {200, 400, 404}
    assert console.call(method, f"/api/{path}", body, Authorization=f"Basic {TOKEN}").status == 401


@pytest.mark.slow
def test_the_session_endpoint_checks_the_token(broker: Broker, console: Caller) -> None:
    bearer = {"Authorization": f"bearer {TOKEN}"}
    assert console.call("GET", "/api/session", **bearer).status == 200
    assert Caller(broker.ops_address).get("/api/session").status == 401


@pytest.mark.parametrize(("method", "path"), [*CHANGES, ("GET", "session")])
def test_without_a_token_file_there_are_no_changes(tmp_path: Path, method: str, path: str) -> None:
    guard = Guard(Settings())
    assert not guard.allows_changes
    asked = Request(method, f"/api/{path}", {"authorization": "Bearer "}, b"{}", "127.0.0.1")
    refusal = guard.refuse_change(asked)
    assert refusal is not None
    assert refusal.status == 404


def test_the_token_is_read_from_the_file_each_time_and_must_be_valid(tmp_path: Path) -> None:
    file = tmp_path / "token"
    guard = Guard(Settings(console_token_file=str(file)))

    def status(token: str) -> int | None:
        refusal = guard.refuse_change(request(authorization=f"Bearer {token}"))
        return None if refusal is None else refusal.status

    assert status("no such file") == 503
    file.write_text("first token, long enough\n")
    assert status("first token, long enough") is None
    file.write_text("second token, long enough")
    assert status("first token, long enough") == 401
    assert status("second token, long enough") is None
    for bad in ("", "too short", "x" * 5000):
        file.write_text(bad)
        assert status(bad) == 503
