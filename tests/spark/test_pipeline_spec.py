"""korvet/spark/pipelines/spec.py: the file of a pipeline, and one error for each thing that may be wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from korvet.spark.pipelines.spec import PipelineError, load

FULL = """
name = "orders"

[sources.orders]
topics = ["orders"]
watermark = ["timestamp", "10 minutes"]
on_error = "dead_letters"

[sources.orders.value]
format = "json"
schema = "id BIGINT, amount DOUBLE"

[sources.payments]
pattern = "payments-.*"
starting = "2026-11-01T12:00:00+02:00"

[sources.payments.value]
format = "avro"
registry = true
subject = "payments-value"

[registry]
url = "http://127.0.0.1:8081"

[transform]
sql_file = "join.sql"

[target]
type = "delta"
path = "tables/orders"
mode = "merge"
key = ["id"]
order_by = ["offset"]

[trigger]
interval = "1m"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "join.sql").write_text("SELECT 1")
    (tmp_path / "latin.sql").write_bytes("SELECT 'é'".encode("latin-1"))
    made = tmp_path / "orders.toml"
    made.write_text(FULL)
    return made


def test_a_file_is_read_with_what_it_names(file: Path) -> None:
    spec = load(file)
    assert spec.transform.sql == "SELECT 1"
    assert spec.trigger.seconds == 60
    assert spec.dead_letters_path == "tables/orders_dead_letters"
    orders, payments = spec.sources.values()
    assert (orders.name, orders.tiers, orders.starting) == ("orders", "both", "earliest")
    assert payments.start_options()["startingTimestamp"] == "1793527200000"
    assert payments.value.version == "latest"


def test_a_pipeline_has_an_interval_unless_it_reads_all_there_is(file: Path) -> None:
    file.write_text(FULL.replace('interval = "1m"', ""))
    assert load(file).trigger.seconds == 10


WRONG = {
    'topics = ["orders"]': [
        ("topics = 1", ":5: sources.orders.topics: expected a list, got `int`"),
        ("", "sources.orders: one of topics and pattern is required, and no more"),
        (
            'topics = ["a"]\npattern = "b"',
            "sources.orders: one of topics and pattern is required, and no more",
        ),
        (
            'topcs = ["orders"]',
            ":5: sources.orders.topcs: there is no such key; there are topics, pattern, tiers, ",
        ),
        ('pattern = "("', "sources.orders.pattern: '(' is no regular expression"),
        (
            'topics = ["o"]\ntiers = "cold"',
            ":6: sources.orders.tiers: 'cold' is none of 'both', 'hot', 'archived'",
        ),
        (
            'topics = ["o"]\nstarting = "now"',
            "sources.orders.starting: 'now' is not earliest, latest, a time",
        ),
        ('topics = ["o"]\nmax_records_per_trigger = 0', "max_records_per_trigger: 0 is not positive"),
        ('topics = ["o"]\nkey.format = "json"', "sources.orders.key: schema, schema_file or infer"),
        ('topics = ["o"]\nkey.schema = "a INT"', "sources.orders.key: the format bytes takes no schema"),
    ],
    'name = "orders"': [
        ("", "there is no `name`"),
        ('name = "my orders"', "name: 'my orders' has other characters"),
        ('name = "../orders"', "name: '../orders' has other characters"),
        ("name = orders", "is not TOML"),
    ],
    "[sources.orders": [("[sources.my-orders", "sources.my-orders: a view's name has letters, digits and _")],
    'watermark = ["timestamp", "10 minutes"]': [
        ('watermark = ["timestamp"]', "sources.orders.watermark: expected a list of length 2")
    ],
    'schema = "id BIGINT, amount DOUBLE"': [
        ("", "sources.orders.value: schema, schema_file or infer is required"),
        ('schema_file = "no.ddl"', "sources.orders.value.schema_file: there is no file"),
        ('schema = "a INT"\ninfer = true', "sources.orders.value: schema and infer exclude each other"),
        (
            'schema = "a INT"\nregistry = true\nsubject = "orders-value"',
            "sources.orders.value.subject: the format json needs schema, schema_file or infer",
        ),
        (
            'schema = "at TIMESTAMP"\nunit = "days"',
            "sources.orders.value.unit: 'days' is none of 'seconds', 'milliseconds', 'microseconds'",
        ),
        ('schema = "a INT"\nmessage = "M"', "sources.orders.value.message: the format json has no messages"),
    ],
    "registry = true": [
        ('registry = true\nunknown = "column"', "value.unknown: only the format json has it"),
        ('registry = true\nunit = "seconds"', "value.unit: only the formats json and csv have it"),
        ("", "sources.payments.value.subject: it needs registry = true"),
    ],
    '[registry]\nurl = "http://127.0.0.1:8081"': [
        ("", "sources.payments.value.registry: there is no [registry] with its url"),
        ('[registry]\nurl = "http://a"\nuser = "u"', "registry: user and password_file need each other"),
    ],
    '[transform]\nsql_file = "join.sql"': [
        ("", "transform: of several sources one row is made by sql, sql_file or python"),
        ('[transform]\nsql_file = "latin.sql"', "transform.sql_file: cannot read "),
        ('[transform]\nsql_file = "no.sql"', "transform.sql_file: there is no file"),
        (
            '[transform]\nsql = "SELECT 1"\nsql_file = "join.sql"',
            "transform: sql and sql_file exclude each other",
        ),
    ],
    'type = "delta"': [
        ('type = "parquet"', "target.mode: the type parquet is only appended to"),
        ('type = "topic"', "target.topic: the type topic needs it"),
        ('type = "hudi"', ":29: target.type: 'hudi' is none of 'delta', 'parquet', 'topic'"),
    ],
    'path = "tables/orders"': [
        ("", "target.path: the type delta needs it"),
        ('path = ""', "target.path: it is empty"),
        (
            'path = "t"\noptions = { mergeSchema = "true" }',
            "target.options: mergeSchema: the mode merge takes only",
        ),
    ],
    '[trigger]\ninterval = "1m"': [('[dead_letters]\npath = " "', "dead_letters.path: it is empty")],
    'key = ["id"]': [("", "target.key: the mode merge needs it, and no other mode has it")],
    'mode = "merge"': [
        ('mode = "append"', "target.key: the mode merge needs it, and no other mode has it"),
        ('mode = "overwrite"', "target.key: the mode merge needs it, and no other mode has it"),
    ],
    'mode = "merge"\nkey = ["id"]': [
        ('mode = "append"', "target.order_by: only the mode merge has it"),
        ('mode = "overwrite"', "target.order_by: only the mode merge has it"),
    ],
    'order_by = ["offset"]': [('order_by = ["at"]\ndelete_when = "gone"', "in the order of offsets alone")],
    'mode = "merge"\nkey = ["id"]\norder_by = ["offset"]': [
        ('mode = "overwrite"', "target.partition_by: the mode overwrite needs it"),
        ('delete_when = "gone"', "target.delete_when: only the mode merge has it"),
    ],
    'interval = "1m"': [
        ('interval = "soon"', "trigger.interval: 'soon' is no time as 10s"),
        ('interval = "99999999999999h"', "trigger.interval: '99999999999999h' is no time as 10s"),
        ('interval = "1m"\navailable_now = true', "trigger: interval and available_now exclude each other"),
    ],
}


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [(before, after, problem) for before, item in WRONG.items() for after, problem in item],
)
def test_what_is_wrong_is_one_error_with_its_place(file: Path, before: str, after: str, problem: str) -> None:
    assert before in FULL
    file.write_text(FULL.replace(before, after))
    with pytest.raises(PipelineError) as raised:
        load(file)
    assert str(raised.value).startswith(str(file))
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        (
            "[trigger]\n# soon\n\navailable_now = 'yes'",
            "5: trigger.available_now: expected `bool`, got `str`",
        ),
        (
            "[trigger]\navailabel_now = true",
            "3: trigger.availabel_now: there is no such key; there are interval, ",
        ),
        ("[target.options]\n'delta.x' = true", "3: target.options.delta.x: expected `str`, got `bool`"),
        ("[spark]\npackages = [\n'a',\n1\n]\nmaster = 'a'", "3: spark.packages: expected `str`, got `int`"),
        (
            "[sources.o]\ntopics = ['o']\nheaders.s = 'bytes'\nheaders.t = 't'",
            "5: sources.o.headers.t: 't' is none of 'string', 'bytes'",
        ),
        ('[sources.o]\npattern = """\n(\n"""', "3: sources.o.pattern: "),
        (
            "transform = {sql = 'SELECT 1', python = 'o.py'}",
            "2: transform: sql and python exclude each other",
        ),
        ("[sink]", "2: sink: there is no such key; there are name, sources, target, registry, transform, "),
        (
            "[transform]\nsql = '${QUERY}'",
            "3: transform.sql: the environment has no variable QUERY; ${QUERY:-TEXT}",
        ),
    ],
)
def test_an_error_has_the_line_of_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: str, problem: str
) -> None:
    monkeypatch.delenv("QUERY", raising=False)
    file = tmp_path / "orders.toml"
    sources = "" if "sources" in added else "[sources.orders]\ntopics = ['orders']\n"
    target = "[target]\ntype = 'parquet'\npath = 'orders'\n"
    file.write_text(f"name = 'orders'\n{added}\n{sources}{target}")
    with pytest.raises(PipelineError) as raised:
        load(file)
    assert str(raised.value).startswith(f"{file}:{problem}")
    assert "\n" not in str(raised.value).replace("\\n", "")


def test_texts_have_variables_of_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = FULL.replace('path = "tables/orders"', 'path = "${AREA:-tables}/${TABLE}"')
    text = text.replace('topics = ["orders"]', 'topics = ["${AREA:-}orders", "$${AREA}"]')
    file.write_text(text.replace('interval = "1m"', 'interval = "${EVERY:-1m}"'))
    monkeypatch.setenv("TABLE", 'a"b')
    monkeypatch.setenv("AREA", "")
    monkeypatch.delenv("EVERY", raising=False)
    spec = load(file)
    assert (spec.target.path, spec.trigger.interval) == ('tables/a"b', "1m")
    assert spec.sources["orders"].topics == ("orders", "${AREA}")
    monkeypatch.setenv("AREA", "eu-")
    assert load(file).sources["orders"].topics == ("eu-orders", "${AREA}")


@pytest.mark.parametrize("name", ["exactly.once", "Exactly.Once", "staging.path", "txnAppId", "txnVersion"])
def test_options_of_a_topic_leave_each_batch_written_once(file: Path, name: str) -> None:
    head = FULL.partition("[target]")[0]
    of_topic = (
        head.replace('on_error = "dead_letters"', "")
        + '[target]\ntype = "topic"\ntopic = "t"\n[target.options]\n'
    )
    file.write_text(of_topic + '"compression.type" = "gzip"')
    assert load(file).target.options == {"compression.type": "gzip"}
    file.write_text(f'{of_topic}"{name}" = "false"')
    with pytest.raises(PipelineError, match=f"target.options: {name}: the pipeline sets it"):
        load(file)


def test_properties_of_a_table_are_options_of_any_mode(file: Path) -> None:
    file.write_text(
        FULL.replace('mode = "merge"', 'mode = "merge"\noptions = { "delta.appendOnly" = "false" }')
    )
    assert load(file).target.options == {"delta.appendOnly": "false"}


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"cannot read .*: No such file or directory"):
        load(tmp_path / "no.toml")


def test_json_after_the_header_of_a_registry_needs_none_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    text = (
        'name = "orders"\n[sources.orders]\ntopics = ["orders"]\n[sources.orders.value]\nformat = "json"\n'
        'schema = "id INT"\nregistry = true\n[target]\ntype = "parquet"\npath = "orders"\n'
    )
    file.write_text(text)
    assert load(file).sources["orders"].value.registry
    file.write_text(text.replace("json", "csv"))
    with pytest.raises(PipelineError, match=r"sources\.orders\.value\.registry: the format csv has none"):
        load(file)
