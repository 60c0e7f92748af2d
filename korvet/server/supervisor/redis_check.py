"""What a Redis must be before Korvet keeps records in it, and what is prepared there before the first fork.

Every connection made here is closed before the function returns, because none may be open across a fork. Passwords
never reach a message.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import redis
from redis.crc import key_slot
from redis.exceptions import AskError, NoPermissionError

from korvet.cluster import data_format
from korvet.cluster.data_format import DataFormat
from korvet.cluster.registration import Registration
from korvet.config.dynamic import DEFAULT, Layers, merge_valid
from korvet.config.settings import Settings
from korvet.errors import ConfigError, ErrorCode
from korvet.redis import scripts
from korvet.redis.blocking import Masters, connect_to, connected, one_line
from korvet.redis.keys import Keys
from korvet.redis.peer import misnamed
from korvet.redis.url import SWITCHED, RedisAddress, parse_url, running_url
from korvet.server import refusals
from korvet.server.embedded import Progress
from korvet.server.finding import Finding, warning
from korvet.server.supervisor.preparation import Prepared
from korvet.server.supervisor.server_facts import ServerFacts

_VERSION_MIN = {"redis": (7, 0), "valkey": (7, 2)}
_PERMISSIONS = scripts.get("check/permissions")
_REGISTER = scripts.get("broker/register")
_LOADING_PAUSE_SECONDS = 1.0
_FORMING_PAUSE_SECONDS = 0.1
_SLOTS = 16_384
_MOVING_TRIES, _MOVING_PAUSE_SECONDS = 20, 0.25
FULL_COVERAGE = "cluster-require-full-coverage"
# By `redis_mode` of INFO, in Valkey `server_mode`.
_KINDS = {"standalone": "server", "sentinel": "sentinel", "cluster": "cluster"}
_NAMED = {"server": "a single server", "sentinel": "a Sentinel", "cluster": "a node of a Redis Cluster"}


def prepare_all(settings: Settings, start: Registration, progress: Progress, *, own: bool) -> Prepared:
    """Check and prepare Redis and register this broker. Raises ConfigError, as each of the steps below."""
    facts = check(settings, progress, settings.redis_connect_timeout_ms)
    cluster_id = prepare(settings).cluster_id
    broker_id = register(settings, start, own=own)
    altered, refused = [dict[str, str](), dict[str, str]()], list[str]()
    with contextlib.suppress(ConfigError, OSError), connected(settings) as masters:
        with contextlib.suppress(ConfigError, redis.RedisError):  # the master that has them is away
            altered = altered_rows(masters, settings, broker_id)
        data_dir = Path(settings.data_dir).expanduser() if own else None
        refused = refusals.of_masters(masters, merge_valid(settings, *altered)[0].settings, data_dir)
    return Prepared(facts, cluster_id, broker_id, altered, refused)


def check(settings: Settings, progress: Progress | None = None, wait_ms: int = 0) -> ServerFacts:
    """Return the facts of the Redis at `settings.redis_url`, having waited until it has loaded its data.

    `progress` gets a line about what is waited for; without it nothing is. A cluster may take `wait_ms` to be in order:
    a master takes no writes in the first 2 s after its start.

    Raises ConfigError, in one line without the password, when it cannot be reached, refuses the login, or would lose
    or misplace records: too old, evicting, of another kind than the URL says.
    """
    check_kind(settings)
    with connected(settings) as masters:
        if masters.is_cluster:
            servers = _in_order(masters, progress, time.monotonic() + wait_ms / 1000)
        else:
            servers = masters.all()
        try:
            results = [_facts(name, server, progress) for name, server in servers.items()]
        except NoPermissionError:
            # Scripts too ask for the history of Redis, by which leader epochs begin.
            try_out(masters, settings)
            raise
    # A record is as safe as the master that has it makes it.
    weakest = min(results, key=lambda result: (result.appendonly or False, result.appendfsync == "always"))
    if all(result[:-2] == weakest[:-2] for result in results):
        weakest = weakest._replace(node="")
    nodes: dict[Finding, list[str]] = {}
    for facts in results:
        for finding in facts.findings:
            nodes.setdefault(finding, []).append(facts.node)
    findings = (
        finding
        if len(names) == len(results)
        else msgspec.structs.replace(finding, said=f"{finding.said} (at {', '.join(names)})")
        for finding, names in nodes.items()
    )
    return weakest._replace(findings=tuple(findings))


def _wait(progress: Progress | None, seconds: float, said: str = "") -> None:
    if progress is None:
        raise ConfigError(f"redis.url: {said}: try again later")
    if said:
        progress(said)
    time.sleep(seconds)


def _in_order(masters: Masters, progress: Progress | None, until: float) -> dict[str, redis.Redis]:
    """Return what `_answering` does, once all of them serve clients or it is later than `until` (time.monotonic)."""
    said = "Redis is a cluster that is not in order yet"
    while True:
        is_last = time.monotonic() >= until
        try:
            answering, serving = _answering(masters)
        except redis.BusyLoadingError:
            _wait(progress, _LOADING_PAUSE_SECONDS, "Redis is loading its data")
            continue
        except ConfigError:
            if is_last:
                raise
        else:
            if is_last or serving == len(answering):
                return answering
        _wait(progress, _FORMING_PAUSE_SECONDS, said)
        said = ""


def _answering(masters: Masters) -> tuple[dict[str, redis.Redis], int]:
    """Return the masters of a cluster that answer, and how many of them serve clients.

    Raises ConfigError if some slot has no master, or none serves clients.
    """
    covered = sum(last + 1 - first for first, last, _ in masters.slots())
    if covered < _SLOTS:
        raise ConfigError(
            f"redis.url: {_SLOTS - covered} of the cluster's {_SLOTS} slots have no master: assign them "
            "(redis-cli --cluster fix)"
        )
    replies = _pings(masters)
    loading = [name for name, reply in replies.items() if isinstance(reply, redis.BusyLoadingError)]
    # One that loads its data is waited for if there is no other.
    names = [name for name, reply in replies.items() if not isinstance(reply, redis.RedisError)] or loading
    if not names:
        raise ConfigError("redis.url: no master of the cluster answers")
    servers = masters.all()
    answering = {name: servers[name] for name in names}
    if loading == names:
        return answering, len(answering)
    states = {name: cluster_info(server).get("cluster_state", "ok") for name, server in answering.items()}
    if "ok" not in states.values():
        raise ConfigError(f"redis.url: the cluster is down (CLUSTER INFO of {', '.join(states)})")
    return answering, list(states.values()).count("ok")


def cluster_info(server: redis.Redis) -> dict[str, str]:
    """Return the fields of CLUSTER INFO; none if the user may not ask for it."""
    try:
        # As two words the client leaves the answer as it is.
        answer: Any = server.execute_command("CLUSTER", "INFO")  # type: ignore[no-untyped-call]  # untyped there
    except NoPermissionError:
        return {}
    lines = (line.partition(":") for line in answer.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def _facts(name: str, server: redis.Redis, progress: Progress | None) -> ServerFacts:
    _wait_until_loaded(name, server, progress)
    info = server.info()
    try:
        facts = judge(info)
    except ConfigError as problem:
        if not name:
            raise
        raise ConfigError(f"{problem} (at {name})") from None
    if facts.appendonly:
        facts = facts._replace(appendfsync=config_of(server, "appendfsync"))
    findings = [*facts.findings, facts.durability_finding()]
    if name and config_of(server, FULL_COVERAGE) == "yes":
        said = f"{FULL_COVERAGE} is yes: while one master is away without a replica, no topic is served"
        advice = f"redis-cli config set {FULL_COVERAGE} no, and in redis.conf"
        findings.append(warning(FULL_COVERAGE, said, advice))
    return facts._replace(findings=tuple(findings), node=name)


def _probes(masters: Masters, settings: Settings) -> Iterator[tuple[redis.Redis, str]]:
    """Yield the client of each master that answers, and a name for keys that hold nothing.

    A broker may start while other masters are away.
    """
    probe = Keys(settings.namespace).probe
    if not masters.is_cluster:
        yield masters.of(probe), probe
        return
    slots = masters.slots()
    left = {name for name, reply in _pings(masters).items() if not isinstance(reply, redis.RedisError)}
    for name in (f"{probe}:{number}" for number in count()):
        if not left:
            return
        slot = key_slot(name.encode())
        master = next(
            (slot_range.master for slot_range in slots if slot_range.first <= slot <= slot_range.last), ""
        )
        if master in left and _is_settled(server := masters.of(name), name):
            left.remove(master)
            yield server, name


def _is_settled(server: redis.Redis, key: str) -> bool:
    """Return whether a master answers for a key: those that are not there it refuses while their slot moves."""
    try:
        server.exists(key)
    except AskError:
        return False
    return True


def _pings(masters: Masters) -> dict[str, object]:
    """Return each master's answer to PING, or its error; raises ConfigError if one refuses the login."""
    replies = masters.each(lambda server: server.ping())
    for name, reply in replies.items():
        if isinstance(reply, redis.AuthenticationError):
            raise ConfigError(f"redis.url: {name} refuses: {one_line(reply)}")
    return dict(replies)


def _at(masters: Masters, key: str, command: str, *arguments: object) -> Any:  # noqa: ANN401 - as redis-py has it
    """Return the answer to a command of the master that has a key; in a cluster an error names both."""
    name = ""
    for _ in range(_MOVING_TRIES):
        name = masters.name_of(key)
        try:
            return getattr(masters.all()[name], command)(*arguments)
        except AskError:  # MovedError is one
            time.sleep(_MOVING_PAUSE_SECONDS)
        except redis.ConnectionError as error:
            if not name:
                raise
            raise ConfigError(f"redis.url: {name}, which has {key}: {one_line(error)}") from None
        except redis.TimeoutError:
            if not name:
                raise
            raise ConfigError(f"redis.url: {name}, which has {key}, does not answer") from None
    raise ConfigError(
        f"redis.url: the slot of {key} is being moved away from {name}: start when that is done"
    )


def check_kind(settings: Settings) -> None:
    """Raise ConfigError if a server is something else than `redis.url` says; it names the URL that is meant.

    Nor may a Sentinel refuse the subscription by which workers notice a failover. A server that says nothing is passed
    over, unless all do.
    """
    target = parse_url(settings.redis_url)
    silent = []
    for address in target.addresses:
        try:
            wrong = misnamed(address)
        except TimeoutError:
            silent.append(str(address))
            continue
        if wrong is not None:
            raise ConfigError(f"redis.url: {wrong}")
        with contextlib.suppress(redis.RedisError), connect_to(address, settings) as client:
            info = client.info()
            kind = _KINDS.get(info.get("server_mode") or info.get("redis_mode", ""), target.kind)
            if kind != target.kind:
                masters = [item for name, item in sorted(info.items()) if re.fullmatch("master[0-9]+", name)]
                names = [master["name"] for master in masters if isinstance(master, dict)]
                where = str(address) if address.host else "HOST:PORT"
                scheme = "redis" if address.tls is None else "rediss"
                meant = {
                    "server": f"{scheme}://{where}",
                    "sentinel": f"{scheme}+sentinel://{where}/{', '.join(names) or 'NAME'}",
                    "cluster": f"{scheme}+cluster://{where}",
                }
                raise ConfigError(
                    f"redis.url: {address} is {_NAMED[kind]}, not {_NAMED[target.kind]}: give {meant[kind]}"
                )
            if kind == "sentinel":
                _try_subscription(client, address)
    if len(silent) == len(target.addresses):
        said = "takes connections and answers nothing: it is not Redis, or it is stopped or busy"
        raise ConfigError(f"redis.url: {', '.join(silent)} {said}")


def _try_subscription(client: redis.Redis, address: RedisAddress) -> None:
    untyped: Any = client  # redis-py's types leave these methods out
    try:
        with untyped.pubsub() as listener:
            listener.subscribe(SWITCHED)
            listener.get_message(timeout=untyped.get_connection_kwargs()["socket_timeout"])
    except NoPermissionError as error:
        raise ConfigError(f"redis.url: the Sentinel at {address} refuses: {one_line(error)}") from None


def judge(info: Mapping[str, object]) -> ServerFacts:
    """Return the facts of `INFO` about a server; raises ConfigError if Korvet cannot use it."""
    name = "valkey" if info.get("server_name") == "valkey" or "valkey_version" in info else "redis"
    version = str(info.get(f"{name}_version", ""))
    minimum = _VERSION_MIN[name]
    # An odd version counts as the oldest.
    if tuple(map(int, re.findall("[0-9]+", version)[:2])) < minimum:
        needed = ".".join(map(str, minimum))
        raise ConfigError(
            f"redis.url: {name.title()} {version or '(no version)'} is too old: {needed} or later"
        )
    if info.get("role") == "slave":
        master = f"{info.get('master_host')}:{info.get('master_port')}"
        raise ConfigError(f"redis.url: this is a replica of {master}, which takes no writes: give its master")
    findings = []
    policy = info.get("maxmemory_policy")
    if policy is None:
        said = "the server does not report its maxmemory-policy: it must be noeviction"
        findings.append(
            warning("maxmemory-policy", said, "ask the provider of the Redis, or set it to noeviction")
        )
    elif policy != "noeviction":
        raise ConfigError(
            f"redis.url: maxmemory-policy is {policy}, which would delete topics when memory runs short: "
            "set it to noeviction"
        )
    appendonly = info.get("aof_enabled") == 1 if "aof_enabled" in info else None
    return ServerFacts(name.title(), version, appendonly, None, tuple(findings))


def prepare(settings: Settings) -> Settings:
    """Load every script and return `settings` with the cluster's id, given or made and kept at the first start of all.

    Raises ConfigError where Redis takes no writes, or is another cluster's, or the user may not run a command that
    Korvet needs.
    """
    keys = Keys(settings.namespace)
    with connected(settings) as masters:
        try_out(masters, settings)
        key = keys.cluster_id
        # Read first: if memory is full, only commands that need none are allowed.
        stored = _at(masters, key, "get", key)
        if stored is None:
            _at(masters, key, "setnx", key, settings.cluster_id or random_cluster_id())
            stored = _at(masters, key, "get", key)
    if not isinstance(stored, bytes) or not stored:
        raise ConfigError(f"redis.url: key {key} holds no cluster id")
    cluster_id = stored.decode(errors="replace")
    if settings.cluster_id not in ("", cluster_id):
        # As Kafka does with its meta.properties: more likely the address is wrong than the name. Clients that got two
        # names from brokers of one cluster would take them for two clusters.
        raise ConfigError(
            f"cluster.id is {settings.cluster_id}, but that of this Redis (key {key}) is {cluster_id}"
        )
    return dataclasses.replace(settings, cluster_id=cluster_id)


def altered_rows(masters: Masters, settings: Settings, broker_id: int) -> list[dict[str, str]]:
    """Return what clients have altered, for all brokers and for this one; nothing of a row that cannot be read.

    Raises ConfigError and redis.RedisError.
    """
    key = Keys(settings.namespace).broker_configs
    texts: list[bytes | None] = [None, None]
    with contextlib.suppress(redis.ResponseError):  # no hash
        texts = _at(masters, key, "hmget", key, DEFAULT, str(broker_id))
    return [_row(text) for text in texts]


def in_effect(masters: Masters, settings: Settings) -> Settings:
    """Return the settings with those that clients have altered; raises ConfigError and redis.RedisError."""
    rows = altered_rows(masters, settings, settings.broker_id)
    return merge_valid(settings, *rows)[0].settings


def _row(text: bytes | None) -> dict[str, str]:
    try:
        return msgspec.json.decode(text or b"{}", type=dict[str, str])
    except msgspec.DecodeError:
        return {}


def altered_layers(settings: Settings) -> Layers | None:
    """Return the settings with those that clients have altered, None if the embedded server does not run.

    Raises ConfigError.
    """
    url = settings.redis_url or running_url(Path(settings.data_dir))
    if url is None:
        return None
    reached = dataclasses.replace(settings, redis_url=url)
    check_kind(reached)
    with connected(reached) as masters:
        return merge_valid(settings, *altered_rows(masters, reached, settings.broker_id))[0]


def register(settings: Settings, start: Registration, *, own: bool) -> int:
    """Register this broker and return its id, with broker.id -1 a free one.

    `own`: no other broker can have the id of the settings, only an earlier start of this one. Raises ConfigError where
    a live broker has it, and for data that this version may not write, or can no longer read.
    """
    keys = Keys(settings.namespace)
    names = keys.brokers, keys.data_format
    asked = start.arguments(settings.broker_lease_ms, own=own, starting=True)
    with connected(settings) as masters:
        check_format(masters, keys)
        try:
            return int(_at(masters, names[0], "evalsha", _REGISTER.sha, 2, *names, *asked))
        except redis.ResponseError as error:
            name, _, problem = one_line(error).partition(" ")
            if name == ErrorCode.UNSUPPORTED_VERSION.name:
                raise ConfigError(f"redis.url: {problem}: take that version or a later one") from None
            if name != ErrorCode.DUPLICATE_BROKER_REGISTRATION.name:
                raise
            raise ConfigError(f"{problem}: give each broker an id of its own (-1 takes a free one)") from None


def check_format(masters: Masters, keys: Keys) -> DataFormat | None:
    """Return who wrote the data, None if there is none; raises ConfigError if this version may not write it."""
    key = keys.data_format
    try:
        stored = data_format.read(_at(masters, key, "hmget", key, data_format.FIELDS))
    except (ValueError, redis.ResponseError) as error:
        raise ConfigError(f"redis.url: {key} is malformed: {one_line(error)}") from None
    problem = stored.refusal(to_write=True) if stored else ""
    if not problem and _at(masters, keys.topics, "exists", keys.topics):
        problem = data_format.outdated(stored)
    if problem:
        raise ConfigError(f"redis.url: {problem}")
    return stored


def try_out(masters: Masters, settings: Settings) -> None:
    """Load every script and run each command of workers once; raises ConfigError with the names of refused ones.

    It leaves no key.
    """
    for server, name in _probes(masters, settings):
        refused = _refusals(server, Keys(settings.namespace), name)
        if settings.replicas or settings.min_insync_replicas > 1:
            with _noted(refused, "WAIT"):
                server.wait(0, 1)
        if refused:
            missing = "a permission is missing" if len(refused) == 1 else "permissions are missing"
            listed = ", ".join(name + (f" ({reason})" if reason else "") for name, reason in refused.items())
            raise ConfigError(f"redis.url: {missing}: {listed}")


def _refusals(client: redis.Redis, keys: Keys, name: str) -> dict[str, str]:
    """Return the commands that are refused, and why if it is not that the user may not run them."""
    untyped: Any = client  # redis-py's types leave these methods out
    refused: dict[str, str] = {}
    # In one round trip: 43 of them to a Redis 50 ms away would take two seconds.
    with _noted(refused, "SCRIPT LOAD"), untyped.pipeline(transaction=False) as pipeline:
        for script in scripts.all_scripts():
            pipeline.script_load(script.source)
        for reply in pipeline.execute(raise_on_error=False):
            if isinstance(reply, Exception):
                raise reply
    if not refused:
        with _noted(refused, "EVALSHA"):
            side = keys.probe_side.replace(keys.probe, name)
            replies = untyped.evalsha(_PERMISSIONS.sha, 2, name, side, name)
            texts = [reply.decode(errors="replace") for reply in replies]
            # The others may have failed for want of what one of these was to do.
            causes = [text for text in texts if "permissions to" in text or "nknown" in text] or texts
            for command, _, reason in (text.partition(": ") for text in causes):
                refused[command] = _reason(reason)
    # By hand: redis-py reports of a refused transaction only its EXEC.
    with _noted(refused, "MULTI"), untyped.client() as single:
        single.execute_command("MULTI")
        single.execute_command("EXEC")
    with _noted(refused, "SSUBSCRIBE"), untyped.pubsub() as listener:
        listener.ssubscribe(name)
        listener.get_message(timeout=untyped.get_connection_kwargs()["socket_timeout"])
        listener.sunsubscribe(name)
    return refused


@contextlib.contextmanager
def _noted(refused: dict[str, str], command: str) -> Iterator[None]:
    """Note a command if the user may not run it."""
    try:
        yield
    except NoPermissionError as error:
        refused[command] = _reason(one_line(error))


def _reason(text: str) -> str:
    """Return why Redis refuses a command; "" if its user may not run it, which the name says."""
    return "" if "no permissions to run" in text else text


def random_cluster_id() -> str:
    """Return 22 characters in the form of Kafka's cluster ids: a random UUID in URL-safe base64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _wait_until_loaded(name: str, client: redis.Redis, progress: Progress | None) -> None:
    while True:
        try:
            client.ping()
        except redis.BusyLoadingError:
            said = f"Redis{' at ' if name else ''}{name} is loading its data"
            _wait(progress, _LOADING_PAUSE_SECONDS, said)
        else:
            return


def config_of(server: redis.Redis, name: str) -> str | None:
    """Return a setting of the server; None if the user may not read it."""
    try:
        answer = server.config_get(name)
    except redis.ResponseError:
        return None
    value = answer.get(name)
    return value if isinstance(value, str) else None
