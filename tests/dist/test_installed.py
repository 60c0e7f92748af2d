"""What each archive installs runs without the checkout: the command, a broker, its console, its scripts."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from korvet import __version__
from korvet.extras import LAKE
from tests.dist.conftest import SETTINGS, Installed, make, run
from tests.support import ops
from tests.support.broker import korvet_broker
from tests.support.docs import links

# The first test of an archive builds it and installs it.
pytestmark = pytest.mark.timeout(900)

IMPORTED = """
import importlib, json, pkgutil, korvet
missing = {}
for module in pkgutil.walk_packages(korvet.__path__, "korvet."):
    if module.name != "korvet.__main__":
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            missing[module.name] = error.name
print(json.dumps([korvet.__file__, missing]))
"""


def test_the_command_says_the_version_and_finds_the_scripts(installed: Installed, tmp_path: Path) -> None:
    assert run(installed.korvet, "--version", directory=tmp_path) == f"korvet {__version__}\n"
    program = "from korvet.redis import scripts; print(scripts.folder(), len(scripts.all_scripts()))"
    folder, count = run(installed.python, "-c", program, directory=tmp_path).split()
    assert Path(folder).is_relative_to(installed.environment)
    assert int(count) > 10


def test_only_the_lake_needs_more_than_is_installed(installed: Installed, tmp_path: Path) -> None:
    where, missing = json.loads(run(installed.python, "-c", IMPORTED, directory=tmp_path))
    assert Path(where).is_relative_to(installed.environment)
    assert {name.split(".")[1] for name in missing} == {"lake", "spark"}
    assert set(missing.values()) <= LAKE


def test_a_broker_serves_clients_its_console_and_doctor(installed: Installed, tmp_path: Path) -> None:
    # `env` changes to a directory that is not the checkout's.
    program = ("env", f"--chdir={tmp_path}", str(installed.korvet), "serve")
    with korvet_broker(tmp_path, workers=1, program=program) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        producer.produce("orders", key="one", value="widget")
        assert producer.flush(30) == 0
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["orders"])
        [message] = consumer.consume(1, timeout=60)
        consumer.close()
        assert (message.key(), message.value()) == (b"one", b"widget")

        assert "<title>Korvet" in ops.page(broker, "/")
        where = ("--listen", broker.bootstrap, "--ops-listen", broker.ops_address)
        flags = ("doctor", "--json", *where, "--data-dir", str(broker.data_dir))
        result = {
            load["check"]: load["level"]
            for load in json.loads(run(installed.korvet, *flags, directory=tmp_path))
        }
        assert (result["redis"], result["listen"], result["advertised (PLAINTEXT)"]) == ("ok", "ok", "ok")
        assert broker.stop() == 0


def test_a_broker_with_a_lake_names_the_command_that_installs_the_extra_here(
    installed: Installed, tmp_path: Path
) -> None:
    flags = ("--listen", "127.0.0.1:0", "--ops-listen", "", "--set", f"lake.path={tmp_path}")
    done = subprocess.run(
        [installed.korvet, "serve", *flags], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    interpreter, _, words = done.stderr.partition("run `")[2].partition(" ")
    assert Path(interpreter).parent == installed.python.parent
    assert words.startswith("-m pip install 'korvet[lake]'`")


@pytest.mark.parametrize("installed", ["bundle"], indirect=True)
def test_the_bundles_script_brings_units_enables_none_and_keeps_the_settings(installed: Installed) -> None:
    etc = installed.environment.parents[1] / "etc"
    assert (etc / "korvet/korvet.toml").read_text() == SETTINGS
    assert (etc / "systemd/system/korvet.service").is_file()
    assert (etc / "systemd/system/korvet-lake-upkeep.timer").is_file()
    assert (etc / "systemd/system-preset/50-korvet.preset").is_file()
    # A unit is enabled by a link to it.
    assert not [path for path in etc.rglob("*") if path.is_symlink()]


def test_every_link_of_the_bundles_pages_leads_to_a_file_in_it(built: Path, tmp_path: Path) -> None:
    [bundle] = built.glob("korvet-*-python*.tar.gz")
    shutil.unpack_archive(bundle, tmp_path, filter="data")
    pages = list(tmp_path.rglob("*.md"))
    assert len(pages) > 30
    assert not [
        (page.relative_to(tmp_path), target)
        for page in pages
        for target in links(page.read_text(encoding="utf-8"))
        if not (page.parent / target.partition("#")[0]).exists()
    ]


def test_two_builds_give_the_same_bytes(built: Path, tmp_path: Path) -> None:
    again = make("bundle", tmp_path / "dist")
    first, second = ({path.name: path.read_bytes() for path in item.iterdir()} for item in (built, again))
    assert first == second
    assert len(first) == 5
