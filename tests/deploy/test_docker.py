"""deploy/docker: what the image and the Compose file name is there, and the settings are those of this Korvet.

tests/dist follows the steps that install Korvet, and tests/deploy_tools builds the image. That the ports, pages and
settings are right is checked by the code that has them.
"""

from __future__ import annotations

import fnmatch
import shlex
from typing import Any

import pytest

from korvet.cli.main import korvet
from korvet.config.listeners import parse_listeners
from korvet.config.sources import load
from korvet.config.values import Address, parse_address
from tests.deploy.files import DEPLOY, HEALTH_PAGE, ROOT, Instruction, dockerfile, documents, seconds

INSTRUCTIONS = dockerfile(DEPLOY / "docker/Dockerfile")
COMPOSE: dict[str, Any] = documents(DEPLOY / "docker/compose.yaml")[0]
SERVICES: dict[str, Any] = COMPOSE["services"]


def _of(name: str, stage: str = "broker") -> list[Instruction]:
    return [step for step in INSTRUCTIONS if step.name == name and step.stage == stage]


def _copies() -> list[Instruction]:
    """Return those that copy from the repository."""
    return [step for step in INSTRUCTIONS if step.name == "COPY" and not step.text.startswith("--from")]


def _environment() -> dict[str, str]:
    pairs = [word.partition("=") for step in _of("ENV") for word in shlex.split(step.text)]
    return {name: value for name, _, value in pairs}


def test_what_is_copied_into_the_image_is_there_and_not_kept_from_docker() -> None:
    kept_from = (ROOT / ".dockerignore").read_text().splitlines()
    assert kept_from[0] == "*"
    let_in = [line[1:] for line in kept_from if line.startswith("!")]
    copied = [source for step in _copies() for source in step.words()[:-1]]
    assert {"core", "korvet", "lua", "pyproject.toml", "requirements.lock"} <= set(copied)
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in let_in), source
    assert sorted(let_in) == sorted(set(copied))


def test_both_images_have_korvet_and_its_core_from_one_build() -> None:
    copying = [(step.stage, {"core", "korvet"} & set(step.words())) for step in _copies()]
    assert [(stage, names) for stage, names in copying if names] == [
        ("core", {"core"}),
        ("wheels", {"korvet"}),
    ]
    stages = {step.stage for step in INSTRUCTIONS}
    from_stages = [
        step.text.split()[0] for step in INSTRUCTIONS if step.name == "COPY" and "--from" in step.text
    ]
    assert {word.removeprefix("--from=") for word in from_stages} <= stages
    installing = [step for step in INSTRUCTIONS if step.name == "RUN" and "/dist/*.whl" in step.text]
    assert [step.stage for step in installing] == ["broker-build", "lake-build"]
    assert all("--no-index" in step.text for step in installing)


def test_the_images_settings_are_taken_and_its_ports_are_theirs() -> None:
    environment = {name: value for name, value in _environment().items() if name.startswith("KORVET_")}
    settings = load(None, environment, {}).settings
    (kafka,), ops = parse_listeners(settings.listeners), parse_address(settings.ops_listen)
    assert [int(port) for step in _of("EXPOSE") for port in step.words()] == [kafka.address.port, ops.port]
    assert kafka.address.host == ops.host == "0.0.0.0"  # noqa: S104 - inside of a container
    assert settings.data_dir in [step.text for step in _of("VOLUME")]


def test_the_image_runs_a_command_of_korvet_as_somebody_without_rights() -> None:
    (entry,), (command,) = _of("ENTRYPOINT"), _of("CMD")
    assert entry.words() == ["tini", "--", korvet.name]
    assert command.words()[0] in korvet.modules
    for stage in ("broker", "lake"):
        assert _of("USER", stage)[-1].text == "10001:10001"


def test_the_images_health_is_asked_at_a_page_that_there_is() -> None:
    (check,) = _of("HEALTHCHECK")
    asked = check.text.partition("http://127.0.0.1:")[2].partition("'")[0]
    port, _, page = asked.partition("/")
    assert f"/{page}" == HEALTH_PAGE
    assert int(port) == parse_address(_environment()["KORVET_OPS_LISTEN"]).port


def test_composes_broker_takes_its_settings() -> None:
    service = SERVICES["korvet"]
    image = {name: value for name, value in _environment().items() if name.startswith("KORVET_")}
    settings = load(None, {**image, **service["environment"]}, {}).settings
    assert settings.redis_url.startswith("redis://redis:6379")
    assert service["build"]["target"] in {step.stage for step in INSTRUCTIONS}
    assert (DEPLOY / "docker" / service["build"]["context"] / service["build"]["dockerfile"]).samefile(
        DEPLOY / "docker/Dockerfile"
    )
    assert seconds(service["stop_grace_period"]) * 1000 > settings.drain_timeout_ms


def test_what_compose_publishes_is_advertised_to_clients_of_the_machine() -> None:
    service = SERVICES["korvet"]
    listening = dict(parse_listeners(service["environment"]["KORVET_LISTENERS"]))
    advertised = dict(parse_listeners(service["environment"]["KORVET_ADVERTISED_LISTENERS"]))
    assert listening.keys() == advertised.keys() == {"INSIDE", "OUTSIDE"}
    published = {}
    for mapping in service["ports"]:
        host, outer, inner = mapping.split(":")
        published[int(inner)] = Address(host, int(outer))
    ops = parse_address(_environment()["KORVET_OPS_LISTEN"]).port
    assert published.keys() == {listening["OUTSIDE"].port, ops}
    assert advertised["OUTSIDE"] == published[listening["OUTSIDE"].port]
    assert advertised["INSIDE"] == Address("korvet", listening["INSIDE"].port)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_what_a_service_mounts_and_waits_for_is_there(name: str) -> None:
    service = SERVICES[name]
    for volume in service.get("volumes", []):
        source = volume.partition(":")[0]
        if source.startswith("."):
            assert (DEPLOY / "docker" / source).exists(), source
        else:
            assert source in COMPOSE["volumes"]
    for other in service.get("depends_on", []):
        assert other in SERVICES
    # Nothing is to be reached from other machines before somebody wants it to be.
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:")
