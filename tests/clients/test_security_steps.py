"""The steps of docs/security.md to a broker with logins and ACLs, as a reader takes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.commands import done, failed, korvet_process, run
from tests.support.authority import Authority
from tests.support.broker import korvet_broker
from tests.support.docs import PAGES
from tests.support.tutorial import section_of

PAGE = PAGES["docs/security.md"]
STEPS = section_of(PAGE, "A broker with logins and ACLs, step by step")
LOGIN = re.findall(r"^```properties\n(.*?)^```", section_of(PAGE, "Clients"), re.MULTILINE | re.DOTALL)[0]
ADDRESS = "broker.example:9094"


@pytest.mark.embedded
def test_each_step_does_what_the_page_says(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    files = {
        "/etc/korvet/broker.pem": authority.issue("/CN=broker").store,
        "/etc/kafka/ca.pem": authority.certificate,
    }
    [settings] = re.findall(r"^ +```toml\n(.*?)^ +```", STEPS, re.MULTILINE | re.DOTALL)
    settings = re.sub("^ +", "", settings, flags=re.MULTILINE).replace("0.0.0.0:9094", "127.0.0.1:0")
    settings = re.sub(r'"advertised.listeners".*\n', "", settings)
    [shell, produce] = re.findall(r"(?:^ {7}\S.*\n)+", STEPS, re.MULTILINE)

    def written(name: str, text: str, **others: str) -> str:
        for before, after in (files | others).items():
            text = text.replace(before, str(after))
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    config = ("--config", written("korvet.toml", settings))
    passwords = {name: written(f"{name}.password", f"secret of {name}") for name in ("admin", "alice")}
    data = ("--data-dir", str(tmp_path / "data"))
    done(run("users", "bootstrap", "admin", *config, *data, "--password-file", passwords["admin"]))
    with korvet_broker(tmp_path, *config, workers=1, listen=()) as broker:
        at = {
            name: (
                "-b",
                broker.bootstrap,
                "--command-config",
                written(
                    f"{name}.properties", LOGIN.replace("alice", name).replace("...", f"secret of {name}")
                ),
            )
            for name in passwords
        }
        lines = shell.replace(
            "set-password alice", f"set-password alice --password-file {passwords['alice']}"
        )
        done(korvet_process("shell", *at["admin"], given=lines))
        command = produce.split("| korvet ")[1].split()
        assert command[-4:] == ["-b", ADDRESS, "--command-config", "alice.properties"]
        assert "SASL" in failed(run(*command[:-4], "-b", broker.bootstrap, given=b"one\n"))
        done(run(*command[:-4], *at["alice"], given=b"one\n"))
        assert "AUTHORIZATION_FAILED" in failed(run("topics", "create", "bills", *at["alice"]))
        read = ("consume", "orders", "--group", "billing", "--exit", *at["alice"])
        assert done(run(*read)) == b"one\n"
        assert "Traceback" not in broker.log()
