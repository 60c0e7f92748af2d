"""deploy/three-machines.md on machines of its own: no record is lost, and only what is listed can be reached."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.dist.conftest import make
from tests.machines.machines import (
    FailedError,
    Machine,
    Network,
    Shell,
    booted,
    check_needs,
    client_shell,
    control_groups,
)
from tests.support.docs import PAGES
from tests.support.tutorial import same, section_of

PAGE = PAGES["deploy/three-machines.md"]
ADDRESSES = {"one": "10.0.0.11", "two": "10.0.0.12", "three": "10.0.0.13"}
CLIENT = "10.0.0.50"
# Such machines have no ssh, and share this one's kernel.
NOT_RUN = re.compile(r"^(?:scp|sudo sysctl) .*\n?", re.MULTILINE)
_BLOCK = re.compile(r"(?:^ {4}.*\n|^\n(?= {4}))+", re.MULTILINE)
_LOAD = """
rm -f ended; (n=1000; until [ -e ended ]; do n=$((n + 1)); echo $n; sleep 0.01; done |
  tee sent | korvet produce orders -b $BROKERS) >load.out 2>&1 & load=$!
"""


class Block(NamedTuple):
    """Commands, and the machines to run them on, in this order."""

    where: list[str]
    commands: str


def blocks(title: str) -> Iterator[Block]:
    """Yield the blocks of a section. Each of several machines, or a client, is named by the first line."""
    for result in _BLOCK.finditer(section_of(PAGE, title)):
        for text in re.split(r"\n\n(?=# )", re.sub(r"^ {4}", "", result[0], flags=re.MULTILINE).strip()):
            where, _, commands = text.partition("\n")
            named = re.findall("one|two|three|client", where)
            assert where.startswith("# "), text
            assert named or where == "# every machine", where
            yield Block(named or list(ADDRESSES), commands)


class Cluster:
    """The machines, and a client of them."""

    def __init__(self, machines: dict[str, Machine], network: Network, client: Shell) -> None:
        self.machines = machines
        self.network = network
        self.client = client

    def do(self, title: str) -> None:
        """Do what a section says."""
        for where, commands in blocks(title):
            for name in where:
                shell = self.client if name == "client" else self.machines[name].shell
                for command, shown in _steps(commands):
                    try:
                        printed = shell.run(NOT_RUN.sub("", command) or ":")
                    except FailedError as failed:
                        pytest.fail(f"{failed}\n{'' if name == 'client' else self.machines[name].journal()}")
                    assert shown is None or same(shown, printed), f"{command}\n{printed}"

    def copy_keys(self) -> None:
        """Do what scp does."""
        for name in ("two", "three"):
            source, to = (self.machines[item].root / "srv/cluster" for item in ("one", name))
            shutil.copytree(source, to)

    def values(self) -> Counter[str]:
        """Return the values in the topic, with how often each is there."""
        return Counter(self.client.run("korvet consume orders --exit -b $BROKERS").split())

    def reaches(self, address: str, port: int) -> bool:
        """Whether the client can connect."""
        connect = f"timeout 2 bash -c ': </dev/tcp/{address}/{port}' 2>/dev/null"
        return self.client.run(f"if {connect}; then echo yes; else echo no; fi").strip() == "yes"


def _steps(commands: str) -> Iterator[tuple[str, str | None]]:
    if not commands.startswith("$ "):
        yield commands, None
        return
    for item in re.split(r"^\$ ", commands, flags=re.MULTILINE)[1:]:
        command, _, printed = item.partition("\n")
        yield command, printed


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give the machines as they are when all is installed."""
    check_needs()
    [archive] = make("bundle", tmp_path_factory.mktemp("built") / "dist").glob("korvet-*-python*.tar.gz")
    directory = tmp_path_factory.mktemp("machines")
    redis, korvet, *numbers = blocks("Install")
    # Redis is on machine three too, and unused there: what is installed is one layer under all machines.
    install = f"{redis.commands}\n{korvet.commands}"
    assert [number.where for number in numbers] == [[name] for name in ADDRESSES]
    (directory / "layers").mkdir()
    groups = control_groups()
    with booted(directory / "layers", ADDRESSES, archive, install) as (machines, network):
        client = client_shell(network, CLIENT, directory)
        try:
            for (name,), commands in numbers:
                machines[name].shell.run(commands)
            yield Cluster(machines, network, client)
        finally:
            client.close()
    assert control_groups() == groups


@pytest.mark.timeout(900)
def test_the_page_leads_to_a_cluster_that_loses_nothing(cluster: Cluster) -> None:
    _nothing_runs_before_it_is_configured(cluster)
    cluster.do("Firewall")
    cluster.do("Keys and passwords")
    cluster.copy_keys()
    cluster.do("Redis")
    cluster.do("Brokers")
    cluster.do("One cluster")
    assert cluster.values() == Counter(map(str, range(1, 1001)))
    _only_listed_ports_are_open(cluster)
    cluster.do("Logs")
    _log_lines_are_json(cluster)
    _reload_applies_settings_or_fails(cluster)

    cluster.client.run(_LOAD)
    cluster.do("Restart one after the other")
    cluster.client.run("touch ended; wait $load || { cat load.out; exit 1; }")
    sent = int(cluster.client.run("tail -n 1 sent"))
    assert sent > 1000
    everything = Counter(map(str, range(1, sent + 1)))
    assert cluster.values() == everything
    cluster.do("Logs")

    cluster.do("Back up")
    cluster.client.run("echo later | korvet produce orders -b $BROKERS")
    assert cluster.values() == everything + Counter(["later"])
    cluster.do("Restore")
    assert cluster.values() == everything

    cluster.client.run("echo kept | korvet produce orders -b $BROKERS")
    cluster.network.cut("one")
    cluster.machines["one"].close()
    cluster.do("If machine one is lost")
    assert cluster.values() == everything + Counter(["kept"])
    cluster.client.run("echo again | korvet produce orders -b $BROKERS")


def _nothing_runs_before_it_is_configured(cluster: Cluster) -> None:
    for machine in cluster.machines.values():
        # As the first boot of an image does with every unit.
        machine.shell.run(
            "systemctl preset korvet.service korvet-lake-archive.service korvet-lake-upkeep.timer"
        )
        assert machine.shell.run("systemctl is-enabled korvet || true").strip() == "disabled"
        assert machine.shell.run("systemctl is-active korvet || true").strip() == "inactive"


def _only_listed_ports_are_open(cluster: Cluster) -> None:
    for name, address in ADDRESSES.items():
        assert cluster.reaches(address, 9092)
        assert not [port for port in (6379, 9093) if cluster.reaches(address, port)], name
    # It is the firewall that makes the difference.
    one = cluster.machines["one"].shell
    one.run("nft flush ruleset")
    assert cluster.reaches(ADDRESSES["one"], 6379)
    one.run("systemctl restart nftables")
    assert not cluster.reaches(ADDRESSES["one"], 6379)


def _log_lines_are_json(cluster: Cluster) -> None:
    for name, machine in cluster.machines.items():
        # Not the lines of systemd about the unit.
        printed = machine.shell.run("journalctl _SYSTEMD_UNIT=korvet.service --output=cat")
        lines = [json.loads(line) for line in printed.splitlines()]
        assert lines, name
        assert all({"level", "event"} <= set(line) for line in lines), name


def _reload_applies_settings_or_fails(cluster: Cluster) -> None:
    shell = cluster.machines["two"].shell
    describe = "korvet configs describe --broker 2 --name num.partitions -b $BROKERS"
    shell.run("""echo '"num.partitions" = 7' >>/etc/korvet/korvet.toml; systemctl reload korvet""")
    assert "7" in cluster.client.run(describe)

    shell.run("""sed --in-place '/num.partitions/s/7/"many"/' /etc/korvet/korvet.toml""")
    assert shell.run("systemctl reload korvet || echo refused").endswith("refused\n")
    assert shell.run("systemctl is-active korvet") == "active\n"
    assert "7" in cluster.client.run(describe)
    shell.run("sed --in-place /num.partitions/d /etc/korvet/korvet.toml; systemctl reload korvet")
