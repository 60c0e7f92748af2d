"""deploy/systemd and deploy/korvet.toml: the commands, settings and paths that they name are Korvet's.

What systemd itself thinks of the units is asked by tests/deploy_tools.
"""

from __future__ import annotations

import re
import shlex
from fnmatch import fnmatch
from pathlib import Path

import click
import pytest

from korvet.cli.main import korvet
from korvet.config.listeners import wanted_listeners
from korvet.config.settings import SETTINGS
from korvet.config.sources import load
from korvet.config.values import is_local, parse_address
from korvet.server.supervisor import ports
from tests.deploy.files import DEPLOY
from tests.deploy.units import COMMAND, SERVICES, UNITS, directives

EXAMPLE = DEPLOY / "korvet.toml"
_COMMENTED = re.compile(r'^# ("[a-z.]+" = )', re.MULTILINE)


def leaf(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that words call, and the words behind its name."""
    command: click.Command = korvet.loaded()
    while isinstance(command, click.Group):
        name, *words = words
        command = command.commands[name]
    return command, words


@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_a_service_calls_commands_that_are_there_with_flags_that_they_have(unit: Path) -> None:
    called = [value for name, value in directives(unit) if name in {"ExecStart", "ExecReload"}]
    assert called
    for line in called:
        program, *words = shlex.split(line.replace("$MAINPID", "1"))
        assert program == COMMAND
        command, rest = leaf(words)
        command.make_context(command.name, rest)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_sets_no_setting_that_is_not_known(unit: Path) -> None:
    variables = [value.split("=", 1) for name, value in directives(unit) if name == "Environment"]
    settings = {name: value for name, value in variables if name.startswith("KORVET_")}
    loaded = load(None, settings, {})
    changed = {item.environment: item.format(item.value(loaded.settings)) for item in SETTINGS.values()}
    assert settings.items() <= changed.items()


def test_a_broker_keeps_its_data_in_the_directory_that_systemd_makes() -> None:
    unit = dict(directives(DEPLOY / "systemd/korvet.service"))
    assert load(EXAMPLE, {}, {}).settings.data_dir == f"/var/lib/{unit['StateDirectory']}"
    assert str(EXAMPLE.name) in unit["ExecStart"]
    assert unit["RuntimeDirectory"].startswith("korvet")


def test_systemd_waits_as_long_as_a_broker_asks() -> None:
    unit = dict(directives(DEPLOY / "systemd/korvet.service"))
    # Else the messages of sd_notify would not be taken, or children be signalled past the supervisor.
    assert (unit["Type"], unit["NotifyAccess"], unit["KillMode"]) == ("notify", "main", "mixed")
    assert int(unit["TimeoutStopSec"]) > load(None, {}, {}).settings.drain_timeout_ms / 1000


def test_a_broker_that_nobody_configured_serves_its_own_machine_alone() -> None:
    settings = load(EXAMPLE, {}, {}).settings
    listeners = wanted_listeners(settings.listeners, settings.listen)
    [bound] = ports.bind_listeners(settings, listeners)
    assert is_local(bound.address.host)
    assert bound.advertised == bound.address
    assert is_local(parse_address(settings.ops_listen).host)


def test_a_preset_keeps_every_unit_from_being_enabled_by_a_first_boot() -> None:
    lines = (DEPLOY / "systemd/50-korvet.preset").read_text().splitlines()
    [(action, pattern)] = [line.split() for line in lines if not line.startswith("#")]
    units = [*SERVICES, *(DEPLOY / "systemd").glob("*.timer")]
    assert action == "disable"
    assert [unit.name for unit in units if not fnmatch(unit.name, pattern)] == []


_LISTENERS = ("listener", "advertised.listeners")
"""How the names of settings begin that go together, and not with listen."""


def test_what_the_example_configuration_shows_in_comments_is_allowed_too() -> None:
    text = EXAMPLE.read_text()
    names = [match[1].split('"')[1] for match in _COMMENTED.finditer(text)]
    assert len(names) > 15
    for name in names:
        (line,) = re.findall(rf'^# ("{re.escape(name)}" = .*)$', text, re.MULTILINE)
        value = line.partition(" = ")[2].strip('"')
        assert SETTINGS[name].format(SETTINGS[name].default) != value, f"{name} shows its default"
        if not name.startswith(_LISTENERS):
            load(None, {}, {name: value})
    together = dict(re.findall(r'^# "([a-z.]+)" = "(.*)"$', text, re.MULTILINE))
    load(None, {}, {name: value for name, value in together.items() if name.startswith(_LISTENERS)})
