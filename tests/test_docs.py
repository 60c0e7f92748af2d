"""The documentation says what is true: its generated tables, its commands, its links, and the files it names."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

import click
import pytest

from korvet.cli.main import korvet
from korvet.redis import url
from tests.jvm.tools import TOOLS
from tests.support.docs import PAGES, ROOT, TABLES, links, prose, renewed
from tests.support.tutorial import section_of

README_BYTES_MAX = 9 * 1024
PICTURE_BYTES_MAX = 150 * 1024

# The changelog may name what once was.
CURRENT = {path: text for path, text in PAGES.items() if path != "CHANGELOG.md"}

# The proof for the code in each section: the test that runs it as it stands and names the page; CHECKED, if
# this file compares commands and flags with the command line; or why nothing runs it.
CHECKED = "commands and flags"
EXAMPLES = {
    "README.md#Start": "tests/kcat/test_first_session.py",
    "README.md#Flags": "tests/kcat/test_first_session.py",
    "README.md#Install": CHECKED + "; tests/dist installs the wheel, and starts a broker",
    "README.md#A first session": "tests/kcat/test_first_session.py",
    "deploy/README.md#systemd": "needs root and systemd; tests/deploy/test_systemd.py checks the unit",
    "deploy/README.md#Docker": "needs Docker; tests/deploy/test_docker.py checks the files",
    "deploy/README.md#Kubernetes": "needs Kubernetes; tests/deploy_tools/test_chart.py renders the chart",
    "deploy/helm/korvet/README.md#Korvet's chart": "needs Kubernetes; tests/deploy_tools/test_chart.py renders it",
    "deploy/three-machines.md#Install": "tests/machines/test_three_machines.py",
    "deploy/three-machines.md#Firewall": "tests/machines/test_three_machines.py",
    "deploy/three-machines.md#Keys and passwords": "tests/machines/test_three_machines.py",
    "deploy/three-machines.md#Redis": "tests/machines/test_three_machines.py",
    "deploy/three-machines.md#Brokers": "tests/machines/test_three_machines.py",
    "deploy/three-machines.md#One cluster": "tests/machines/test_three_machines.py",
    "deploy/three-machines.md#Logs": "tests/machines/test_three_machines.py",
    "deploy/three-machines.md#Restart one after the other": "tests/machines/test_three_machines.py",
    "deploy/three-machines.md#Back up": "tests/machines/test_three_machines.py",
    "deploy/three-machines.md#Restore": "tests/machines/test_three_machines.py",
    "deploy/three-machines.md#If machine one is lost": "tests/machines/test_three_machines.py",
    "docs/backup.md#Copy Redis": "tests/lake_processes/test_backup.py",
    "docs/backup.md#Copy the lake": "tests/lake_processes/test_backup.py",
    "docs/backup.md#Restore": "tests/lake_processes/test_backup.py",
    "docs/backup.md#Try it every week": CHECKED + "; tests/lake_processes/test_backup.py",
    "docs/capacity.md#Capacity of a cluster": "tests/loadtest/test_capacity.py",
    "docs/admin-python.md#Administration from Python": "tests/admin/test_examples.py",
    "docs/architecture.md#Processes": "a picture",
    "docs/architecture.md#Produce": "a picture",
    "docs/architecture.md#Fetch": "a picture",
    "docs/cluster.md#Several brokers": CHECKED + "; tests/machines starts a cluster",
    "docs/cluster.md#On one machine": "tests/kcat/test_first_session.py",
    "docs/cluster.md#Features": "tests/cli/test_features.py",
    "docs/cluster.md#Inside and outside of a container network": "tests/clients/test_listeners.py",
    "docs/configuration.md#Change them by clients": CHECKED,
    "docs/groups.md#List, describe, delete, reset": "tests/kcat/test_first_session.py",
    "docs/share-groups.md#Plain Redis workers": "tests/share/test_worker.py",
    "docs/security.md#SASL": "a form",
    "docs/security.md#Users in Redis": CHECKED + "; tests/cli/test_users.py",
    "docs/security.md#Users of PLAIN in a file": "a form",
    "docs/security.md#Tokens": "a form",
    "docs/security.md#Quotas": "tests/jvm/kafka_tools/test_quotas.py",
    "docs/lake/archiving.md#By jobs": "tests/jvm/spark/test_tutorial.py",
    "docs/lake/archiving.md#Partitions by date": CHECKED + "; tests/lake/test_dates.py",
    "docs/lake/catalogs.md#A Hive metastore": CHECKED + "; tests/jvm/spark/test_metastore.py",
    **{
        f"docs/lake/declarative-pipelines.md#{title}": "tests/spark/test_declarative_pipelines.py"
        for title in ("Declarative pipelines", "A project", "Run it")
    },
    "docs/lake/iceberg.md#Switch it on": "settings; tests/cli/lake/test_upkeep.py and tests/stores have them",
    "docs/lake/iceberg.md#Read it": "tests/lake/test_iceberg.py",
    "docs/lake/object-stores.md#Object stores": "needs a store; tests/stores has one of its own",
    "docs/lake/pipelines.md#A pipeline in ten minutes": "tests/jvm/spark/test_tutorial.py",
    "docs/lake/pipelines.md#Expectations": "a line of a file; tests/jvm/spark/test_pipelines.py has such",
    "docs/lake/pipelines.md#A range": CHECKED + "; tests/jvm/spark/test_pipelines.py",
    "docs/lake/pipelines.md#Reset": CHECKED + "; tests/cli/lake/test_pipeline_control.py",
    "docs/lake/replay.md#Replays": "tests/jvm/spark/test_tutorial.py",
    "docs/lake/replay.md#By transactions": CHECKED + "; tests/cli/lake/test_replay.py",
    "docs/lake/security.md#Jobs and queries": "tests/jvm/spark/test_cluster.py",
    "docs/lake/security.md#Spark": "options; tests/spark/test_sink.py and tests/spark/test_source.py have them; "
    + CHECKED,
    "docs/lake/security.md#Replays": "tests/cli/lake/test_replay_rights.py",
    "docs/lake/spark.md#Writing from Spark": "tests/spark/test_sink.py",
    "docs/lake/spark.md#Exactly once": "tests/spark/test_exactly_once.py",
    "docs/lake/spark.md#Decoding records": "tests/spark/test_decoded_frames.py",
    "docs/lake/spark.md#On a Spark cluster": CHECKED
    + "; tests/jvm/spark/test_cluster.py has a cluster of its own",
    "docs/lake/sql.md#As of a version or a time": CHECKED
    + "; tests/lake_processes/test_query_command.py has --as-of",
    "docs/lake/sql.md#Names": "tests/spark/test_query.py",
    "docs/lake/tutorial.md#Ten minutes with the lake": "tests/jvm/spark/test_tutorial.py",
    "docs/lake/upkeep.md#Upkeep of tables": "tests/jvm/spark/test_tutorial.py",
    "docs/records.md#Choose the layout": "tests/kcat/test_first_session.py",
    "docs/records.md#Write from Redis": "tests/kcat/test_first_session.py",
    "docs/transactions.md#Transactions": "tests/clients/test_transactions.py",
    "docs/transactions.md#Redis readers": "tests/clients/test_transactions.py",
    "docs/transactions.md#Administration": CHECKED + "; tests/cli/test_transactions.py",
    "docs/redis.md#Permissions": "tests/server/test_startup.py",
    "docs/redis.md#Sentinel": "tests/redis/test_sentinel.py",
    "docs/redis.md#Move a large partition": "tests/clients/test_large_stream.py",
    "docs/security.md#Listeners": "tests/clients/test_tls.py",
    "docs/security.md#TLS": "tests/clients/test_tls.py",
    "docs/security.md#A broker with logins and ACLs, step by step": "tests/clients/test_security_steps.py",
    "docs/security.md#ACLs": CHECKED,
    "docs/security.md#Clients": "tests/cli/test_command_config.py",
    "docs/console.md#How the console reaches its broker": "tests/console/test_rights.py",
    "docs/console.md#Require a token to read": "a form; tests/console/test_login.py and test_tls.py",
    "docs/security.md#Audit log": "lines of a log",
    "docs/redis-schema.md#Leader epochs": "a form",
    "docs/redis-schema.md#Share groups": "a form",
    "docs/redis-schema.md#The index": "a form",
}
_CODE = re.compile(r"^(?: {4}(?! *[-*] )|```)", re.MULTILINE)


def slug(title: str) -> str:
    """Return the anchor of a heading, as GitHub and mkdocs make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def anchors(path: str) -> set[str]:
    return {slug(title) for title in re.findall(r"^#+ (.+)$", prose(PAGES[path]), re.MULTILINE)}


def broken_links(path: str) -> Iterator[str]:
    """Yield the links of a page that lead nowhere; those to other hosts are not followed."""
    for target in links(PAGES[path]):
        file, _, anchor = target.partition("#")
        result = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
        if not (result in PAGES or (ROOT / result).is_file()) or (anchor and anchor not in anchors(result)):
            yield target


def test_the_readme_can_be_read_at_once() -> None:
    assert len(PAGES["README.md"].encode()) <= README_BYTES_MAX


def test_pictures_are_small() -> None:
    pictures = {file.name: file.stat().st_size for file in (ROOT / "docs/pictures").iterdir()}
    assert pictures
    assert {name: size for name, size in pictures.items() if size > PICTURE_BYTES_MAX} == {}


def test_the_picture_of_a_request_is_drawn_of_its_text() -> None:
    """`make docs-pictures` draws it: a script in pages would come from another server."""
    pictures = ROOT / "docs/pictures"
    drawn = re.findall(r"<text[^>]*>(.*?)</text>", (pictures / "request.svg").read_text())
    said = re.findall(r"(?:: | as |opt )(.+)", (pictures / "request.mmd").read_text())
    lines = [line for item in said for line in item.split("<br/>")]
    assert len(lines) > 15
    assert {re.sub("<[^>]*>", "", text).strip("[]") for text in drawn} == {"opt", *lines}
    assert not [path for path, text in PAGES.items() if "```mermaid" in text]


@pytest.mark.parametrize("path", PAGES)
def test_every_link_leads_to_a_page_and_its_heading(path: str) -> None:
    assert list(broken_links(path)) == []


def test_a_link_that_leads_nowhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    links = "[a](topics.md#no-such), [b](none.md), [c](../README.md#start), [d](#here)\n\n# Here\n"
    monkeypatch.setitem(PAGES, "docs/page.md", links)
    assert list(broken_links("docs/page.md")) == ["topics.md#no-such", "none.md"]


def test_the_index_lists_every_page() -> None:
    listed = re.findall(r"\]\(([\w/.-]+\.md)\)", PAGES["docs/index.md"])
    result = [posixpath.normpath(posixpath.join("docs", target)) for target in listed]
    assert sorted(result) == sorted(set(PAGES) - {"docs/index.md", "CHANGELOG.md"})


def test_the_generated_tables_are_what_the_code_says() -> None:
    named = [name for text in PAGES.values() for name in re.findall(r"<!-- table: ([a-z-]+) -->", text)]
    assert sorted(named) == sorted(TABLES)
    for path, text in PAGES.items():
        assert renewed(text) == text, f"{path}: run .venv/bin/python -m tests.support.docs"


def test_a_table_that_is_not_true_any_more_is_noticed() -> None:
    text = PAGES["docs/reference/apis.md"]
    changed = text.replace("| 18 | ApiVersions |", "| 18 | ApiVersion |")
    assert changed != text
    assert renewed(changed) == text


def test_every_path_and_name_in_it_that_a_page_names_exists() -> None:
    pattern = re.compile(
        r"`((?:\.ci|core(?!/target)|deploy|docs|korvet|loadtest|lua|tests)/[\w./-]*)(?::(\w+))?"
    )
    kinds = {".py": "def|class", ".rs": "fn|struct|enum|trait"}
    named = {(page, *match.groups()) for page, text in CURRENT.items() for match in pattern.finditer(text)}
    assert len(named) > 50
    missing = [
        (page, path, name)
        for page, path, name in sorted(named, key=str)
        if not (file := ROOT / path).exists()
        or (name and not re.search(rf"(?:{kinds[file.suffix]}) {name}\b", file.read_text()))
    ]
    assert not missing


def test_every_make_target_that_a_page_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = {
        target
        for text in CURRENT.values()
        for target in re.findall(r"(?:`|^ {4}(?:\$ )?)make ([a-z-]+)", text, re.MULTILINE)
    }
    assert {"run", "test"} <= named
    assert not [target for target in named if f"\n{target}:" not in makefile]


def test_every_command_and_flag_that_a_page_names_exists() -> None:
    pattern = re.compile(r"(?:^ {4}(?:\$ )?(?:[^\n]*\| )?|`)korvet ([a-z][^\n|`]*)", re.MULTILINE)
    served = [re.sub(r'make run ARGS="(.*)"', r"korvet serve \1", text) for text in CURRENT.values()]
    lines = [line for text in served for line in pattern.findall(text)]
    assert len(lines) > 80
    for line in lines:
        command: click.Command = korvet.loaded()
        words = line.replace("[", "").replace("]", "").split()
        while isinstance(command, click.Group) and words:
            if words[0].startswith("-"):  # `korvet cluster` alone describes
                words.insert(0, "describe")
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        flags = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
        # A flag may be followed by its value in one word, as -K:.
        named = [
            word if word.startswith("--") else word[:2] for word in words if re.match("--?[a-zA-Z]", word)
        ]
        assert set(named) <= flags, line


def test_every_section_with_code_says_what_runs_it() -> None:
    shown = {
        f"{path}#{section.partition(chr(10))[0].lstrip('# ')}"
        for path, text in CURRENT.items()
        if not path.startswith("loadtest/")
        for section in re.split(r"^(?=#+ )", text, flags=re.MULTILINE)
        if _CODE.search(section)
    }
    assert shown == set(EXAMPLES)
    for section, becomes in EXAMPLES.items():
        if becomes.startswith("tests/"):
            assert section.partition("#")[0] in (ROOT / becomes).read_text(), section


def test_the_tools_of_kafka_that_the_page_names_are_those_that_are_tested() -> None:
    assert set(re.findall(r"`(kafka-[a-z-]+)`", PAGES["docs/tools.md"])) == set(TOOLS)


def test_each_row_of_the_page_on_tools_names_a_test_or_the_day_of_a_trial() -> None:
    rows = re.findall(r"^\|(?: [^|]*\|){4} ([^|]*) \|$", PAGES["docs/tools.md"], re.MULTILINE)
    shown = [text for text in rows if text not in {"Shown by", "---"}]
    assert len(shown) > 50
    trial = r"(?:by hand|source read), 20\d\d-\d\d-\d\d"
    assert [text for text in shown if not re.search(rf"`tests/|^{trial}$", text)] == []


def test_the_page_on_redis_names_every_option_of_tls() -> None:
    assert set(re.findall(r"`(ssl_\w+)`", PAGES["docs/redis.md"])) == set(url._TLS_OPTIONS)


def test_the_figures_of_the_readme_are_those_of_the_page_on_performance() -> None:
    table = section_of(PAGES["README.md"], "Speed")
    figures = set(re.findall(r"\d+[.,]\d+(?:,\d+)?", table))
    assert len(figures) > 10
    assert figures <= set(re.findall(r"\d+[.,]\d+(?:,\d+)?", PAGES["docs/performance.md"]))
