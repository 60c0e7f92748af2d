"""README.md says what is true: its generated tables, its commands, and the files it names."""

from __future__ import annotations

import re

import click

from korvet.cli.main import korvet
from tests.jvm.tools import TOOLS
from tests.support import readme

TEXT = readme.README.read_text()


def test_the_generated_tables_are_what_the_code_says() -> None:
    texts = [TEXT, readme.COMMANDS.read_text()]
    named = [name for text in texts for name in re.findall(r"<!-- table: ([a-z-]+) -->", text)]
    assert sorted(named) == sorted(readme.TABLES)
    for text in texts:
        assert readme.renewed(text) == text, "run: .venv/bin/python -m tests.support.readme"


def test_a_table_that_is_not_true_any_more_is_noticed() -> None:
    changed = TEXT.replace("| 18 | ApiVersions |", "| 18 | ApiVersion |")
    assert changed != TEXT
    assert readme.renewed(changed) == TEXT


def test_every_path_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"`((?:korvet|lua|tests|loadtest|deploy)/[\w./]*)`", TEXT))
    assert len(named) > 5
    missing = [path for path in sorted(named) if not (readme.README.parent / path).exists()]
    assert not missing


def test_every_make_target_that_the_readme_names_exists() -> None:
    makefile = (readme.README.parent / "Makefile").read_text()
    named = set(re.findall(r"`make ([a-z-]+)", TEXT))
    assert {"run", "test"} <= named
    assert not [target for target in named if f"\n{target}:" not in makefile]


def test_every_command_and_flag_that_the_readme_names_exists() -> None:
    lines = re.findall(r"^    (?:\$ )?(?:[^\n]*\| )?korvet ([a-z][^\n|]*)$", TEXT, re.MULTILINE)
    assert len(lines) > 5
    for line in lines:
        command: click.Command = korvet.loaded()
        words = line.replace("[", "").replace("]", "").split()
        while isinstance(command, click.Group):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        flags = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
        # A flag may have its value behind it in one word, as -K:.
        named = [
            word if word.startswith("--") else word[:2] for word in words if re.match("--?[a-zA-Z]", word)
        ]
        assert set(named) <= flags, line


def test_the_tools_of_kafka_that_the_readme_names_are_those_that_are_tested() -> None:
    section = TEXT.split("\n## Kafka's tools and Kafka Connect\n")[1].split("\n## ")[0]
    assert set(re.findall(r"`(kafka-[a-z-]+)`", section)) == set(TOOLS)


def test_every_step_that_the_architecture_page_names_exists() -> None:
    text = (readme.README.parent / "docs/architecture.md").read_text()
    named = re.findall(r"`((?:korvet|lua|docs)/[\w./]+?)(?::(\w+))?`", text)
    assert len(named) > 25
    missing = [
        f"{path}:{name}"
        for path, name in named
        if not (file := readme.README.parent / path).exists()
        or (name and not re.search(rf"(?:def|class) {name}\b", file.read_text()))
    ]
    assert not missing
