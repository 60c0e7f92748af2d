"""korvet/spark/pipelines: what a checkpoint can carry, and what a pipeline needs of Spark."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pyspark
import pytest
from pyspark.sql import SparkSession

from korvet.cluster.pipelines import QueryPosition
from korvet.lake.table import Lake
from korvet.spark.pipelines.decoding import DecoderState, decode
from korvet.spark.pipelines.packages import configs
from korvet.spark.pipelines.spec import Decoding, PipelineError, PipelineSpec, SourceSpec, load
from korvet.spark.pipelines.state import (
    Begun,
    SourcePosition,
    StateDirectory,
    UnwrittenPins,
    location,
    merged,
    target_fields,
)

BEGUN = Begun(
    sources=[("orders", "a,b"), ("payments", "/p.*/")],
    state="Aggregate [hour]",
    target=target_fields({"type": "delta", "mode": "merge", "key": ("id",)}, "/lake/tables/orders"),
    spark="4.2.0",
)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"sources": [("orders", "a,b,c"), ("payments", "/p.*/")]}, None),
        ({"sources": [("orders", "a"), ("payments", "/p.*/")]}, "sources.orders does not read b any more"),
        (
            {"sources": [("orders", "a,b"), ("payments", "p")]},
            "sources.payments does not read /p.*/ any more",
        ),
        (
            {"sources": BEGUN.sources[::-1]},
            "the query reads payments, orders, and did read orders, payments, in this order",
        ),
        ({"state": "Aggregate [day]"}, "keeps state"),
        ({"state": ""}, "keeps state"),
        # Another version may say the same in other words, but not nothing.
        ({"state": "Aggregates [hour]", "spark": "4.3.0"}, None),
        ({"state": "", "spark": "4.3.0"}, "keeps state"),
        (
            {"target": BEGUN.target | {"path": "/lake/t"}},
            'target.path is "/lake/t", and was "/lake/tables/orders"',
        ),
        ({"target": BEGUN.target | {"mode": "append"}}, 'target.mode is "append", and was "merge"'),
        ({"target": BEGUN.target | {"key": ["a"]}}, 'target.key is ["a"], and was ["id"]'),
    ],
)
def test_what_has_changed_is_said_if_a_checkpoint_cannot_carry_it(
    changes: dict[str, object], problem: str | None
) -> None:
    kept = msgspec.json.decode(msgspec.json.encode(BEGUN), type=Begun)
    result = kept.problem(msgspec.structs.replace(BEGUN, **changes))
    assert result == problem if problem is None else problem in (result or "")


def test_a_schema_that_is_inferred_to_validate_is_not_pinned(spark: SparkSession, tmp_path: Path) -> None:
    state = StateDirectory(spark, str(tmp_path), "orders")
    frame = spark.createDataFrame([(bytearray(b'{"id": 1}'),)], "value binary").selectExpr(
        *("CAST(NULL AS BINARY) key", "value", "'orders' topic", "0 partition", "0L offset"),
        *("current_timestamp() timestamp", "0 timestampType", "NULL headers"),
    )
    source = SourceSpec(name="orders", topics=("orders",), value=Decoding(format="json", infer=True))
    file = tmp_path / "_pipelines/orders/schemas/orders.value.json"
    for pins, is_pinned in ((UnwrittenPins(state), False), (state, True)):
        result = decode(frame, source, DecoderState(pins, lambda _: frame))
        assert result.select("value.*").columns == ["id"]
        assert file.exists() == is_pinned


def test_files_are_replaced_whole_and_checkpoints_have_an_id(spark: SparkSession, tmp_path: Path) -> None:
    state = StateDirectory(spark, str(tmp_path), "orders")
    assert state.read("schema.ddl") is None
    state.write("schema.ddl", b"id INT")
    state.write("schema.ddl", b"id BIGINT")
    assert state.read("schema.ddl") == b"id BIGINT"
    assert state.incarnation("main") is None
    # Until a query has begun, anything may change.
    state.begin(BEGUN, ["main"])
    other = msgspec.structs.replace(BEGUN, state="")
    state.begin(other, ["main"])
    metadata = Path(state.checkpoint("main")) / "metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text('{"id": "0815"}')
    assert state.incarnation("main") == "0815"
    state.begin(other, ["main"])
    with pytest.raises(PipelineError, match=r"keeps state.*`korvet lake pipeline reset orders`"):
        state.check(BEGUN, ["main"])


FIRST, SECOND = (json.dumps({"topics": {"a": {"id": "i", "offsets": {"0": at}}}}) for at in (7, 8))
DEAD = "dead_letters_orders"
APART = r"sources\.orders is decoded in another way.*run the pipeline once more"


@pytest.mark.parametrize(
    ("batches", "problem"),
    [
        ({}, None),
        # Batches that were begun, with the position in each source, and that were committed.
        ({"main": ({3: ["v1", "{}", FIRST, SECOND]}, [3]), DEAD: ({0: ["v1", "{}", FIRST]}, [0])}, None),
        (
            {
                "main": ({9: ["v1", "{}", SECOND, FIRST], 10: ["v1", "{}", FIRST, SECOND]}, [9, 10]),
                DEAD: ({0: ["v1", "{}", FIRST]}, [0]),
            },
            None,
        ),
        ({"main": ({3: ["v1", "{}", SECOND, FIRST]}, [3]), DEAD: ({0: ["v1", "{}", FIRST]}, [0])}, APART),
        # One that has not begun, or will repeat a batch.
        ({"main": ({3: ["v1", "{}", FIRST, SECOND]}, [3])}, APART),
        ({DEAD: ({3: ["v1", "{}", FIRST]}, [3])}, APART),
        ({"main": ({3: ["v1", "{}", FIRST, SECOND]}, [2]), DEAD: ({0: ["v1", "{}", FIRST]}, [0])}, APART),
        ({"main": ({3: ["v1", "{}", FIRST, SECOND]}, [3]), DEAD: ({0: ["v1", "{}", FIRST]}, [])}, APART),
        # Nothing is known of other formats.
        ({"main": ({3: ["v2", "{}", FIRST, SECOND]}, [3]), DEAD: ({0: ["v2", "{}", FIRST]}, [0])}, APART),
        ({"main": ({3: ["v1", "{}", FIRST]}, [3]), DEAD: ({0: ["v1", "{}", FIRST]}, [0])}, APART),
        ({"main": ({3: ["v1", "{}", "-", SECOND]}, [3]), DEAD: ({0: ["v1", "{}", "-"]}, [0])}, APART),
        ({"main": ({3: []}, [3]), DEAD: ({0: []}, [0])}, APART),
    ],
)
def test_decoding_may_change_only_if_both_queries_have_read_the_same(
    spark: SparkSession,
    tmp_path: Path,
    batches: dict[str, tuple[dict[int, list[str]], list[int]]],
    problem: str | None,
) -> None:
    state = StateDirectory(spark, str(tmp_path), "orders")
    begun = msgspec.structs.replace(BEGUN, decoded={"orders": "one way"})
    state.begin(begun, [])
    main = Path(state.checkpoint("main"))
    for directory in (main / "offsets", main / "commits"):
        directory.mkdir(parents=True)
    (main / "metadata").write_text('{"id": "0815"}')
    for query, (offsets, commits) in batches.items():
        checkpoint = Path(state.checkpoint(query))
        for kind, files in (("offsets", offsets), ("commits", {commit: ["v1", "{}"] for commit in commits})):
            (checkpoint / kind).mkdir(parents=True, exist_ok=True)
            for number, lines in files.items():
                (checkpoint / kind / str(number)).write_text("\n".join(lines))
                (checkpoint / kind / f".{number}.crc").touch()
    for decoded in ({"orders": "another"}, {}):
        now = msgspec.structs.replace(begun, decoded=decoded)
        if problem is None:
            state.check(now, ["main"])
        else:
            with pytest.raises(PipelineError, match=problem):
                state.check(now, ["main"])
    state.check(begun, ["main"])
    # Nothing is known of what was begun before this was kept.
    before = json.loads(msgspec.json.encode(begun))
    del before["decoded"]
    state.write("pipeline.json", json.dumps(before).encode())
    state.check(msgspec.structs.replace(begun, decoded={"orders": "another"}), ["main"])


def test_the_furthest_position_is_that_of_each_partition() -> None:
    first = SourcePosition({"a": QueryPosition("i", {0: 7, 1: 3}), "b": QueryPosition("j", {0: 1})})
    second = SourcePosition({"a": QueryPosition("i", {0: 5, 1: 4, 2: 9}), "c": QueryPosition("k", {0: 2})})
    both = {
        "a": QueryPosition("i", {0: 7, 1: 4, 2: 9}),
        "b": QueryPosition("j", {0: 1}),
        "c": QueryPosition("k", {0: 2}),
    }
    assert merged(max, first, second) == merged(max, second, first) == SourcePosition(both)


@pytest.mark.parametrize(
    ("path", "result"),
    [
        ("tables/orders", "/lake/tables/orders"),
        ("/other/orders", "/other/orders"),
        ("s3://bucket/orders", "s3a://bucket/orders"),
        ("hdfs://host/orders", "hdfs://host/orders"),
    ],
)
def test_paths_are_below_the_lake_unless_they_say_where_they_are(path: str, result: str) -> None:
    assert location("/lake/", path) == result


def test_a_lake_may_be_relative_or_in_an_object_store() -> None:
    assert location("lake", "t") == str(Path("lake/t").absolute())
    assert location("s3://lakes/korvet", "t") == "s3a://lakes/korvet/t"


def spec(directory: Path, target: str, more: str = "") -> PipelineSpec:
    file = directory / "orders.toml"
    file.write_text(f'name = "orders"\n[sources.orders]\ntopics = ["orders"]\n{more}\n[target]\n{target}\n')
    return load(file)


DELTA = 'type = "delta"\npath = "t"'
PARQUET = 'type = "parquet"\npath = "t"'


def test_packages_are_those_that_neither_spark_nor_the_file_has(tmp_path: Path) -> None:
    minor = ".".join(pyspark.__version__.split(".")[:2])
    delta = f"io.delta:delta-spark_{minor}_2.13:4.4.0"
    avro = f"org.apache.spark:spark-avro_2.13:{pyspark.__version__}"
    (tmp_path / "a.avsc").write_text("{}")
    decoded = '[sources.orders.key]\nformat = "avro"\nschema_file = "a.avsc"'
    packages = "spark.jars.packages"
    assert configs(spec(tmp_path, DELTA), None, Lake())[packages] == delta
    assert packages not in configs(spec(tmp_path, PARQUET), None, Lake())
    assert configs(spec(tmp_path, PARQUET, 'on_error = "dead_letters"'), None, Lake())[packages] == delta
    assert configs(spec(tmp_path, DELTA, decoded), None, Lake())[packages] == f"{delta},{avro}"
    own = '\n[spark]\npackages = ["org.apache.spark:spark-avro_2.13:4.1.0"]\n'
    own += f'conf = {{"spark.jars" = "/jars/delta-spark_{minor}_2.13-4.0.0.jar"}}'
    assert (
        configs(spec(tmp_path, DELTA + own, decoded), None, Lake())[packages]
        == "org.apache.spark:spark-avro_2.13:4.1.0"
    )
    # A cluster has its own parallelism.
    assert "spark.sql.shuffle.partitions" not in configs(spec(tmp_path, DELTA), "spark://spark:7077", Lake())
    assert "spark.sql.shuffle.partitions" in configs(spec(tmp_path, DELTA), "local[2]", Lake())


def test_a_spark_that_no_delta_lake_was_released_for_is_refused_unless_the_file_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    with pytest.raises(
        PipelineError, match=r"^there is no Delta Lake 4\.4\.0 for Spark 4\.3\.0: install pyspark 4\.2, "
    ):
        configs(spec(tmp_path, DELTA), None, Lake())
    own = '\n[spark]\npackages = ["io.delta:delta-spark_4.3_2.13:4.5.0"]\n'
    assert (
        configs(spec(tmp_path, DELTA + own), None, Lake())["spark.jars.packages"]
        == "io.delta:delta-spark_4.3_2.13:4.5.0"
    )
    assert "spark.jars.packages" not in configs(spec(tmp_path, PARQUET), None, Lake())


def test_java_compiles_less_for_a_run_that_ends_unless_the_file_says_how(tmp_path: Path) -> None:
    name = "spark.driver.defaultJavaOptions"
    once = f"{DELTA}\n[trigger]\navailable_now = true\n"
    assert configs(spec(tmp_path, once), None, Lake())[name] == "-XX:TieredStopAtLevel=1"
    assert name not in configs(spec(tmp_path, DELTA), None, Lake())
    own = f'{once}[spark.conf]\n"{name}" = "-Xss4m"\n'
    assert configs(spec(tmp_path, own), None, Lake())[name] == "-Xss4m"


def test_a_lake_in_s3_is_reached_by_its_own_options_unless_the_file_has_others(tmp_path: Path) -> None:
    options = "aws_access_key_id=key,AWS_SECRET_ACCESS_KEY=hunter2,AWS_SESSION_TOKEN=now,AWS_ALLOW_HTTP=true"
    amazon = Lake.of("s3://lakes/korvet", f"{options},AWS_REGION=eu-west-1")
    other = Lake.of("s3a://lakes", f"{options},AWS_ENDPOINT_URL=http://minio:9000")

    def result(lake: Lake, **conf: str) -> dict[str, str]:
        names = "".join(f'"spark.hadoop.fs.s3a.{name}" = "{value}"\n' for name, value in conf.items())
        of = configs(spec(tmp_path, f"{PARQUET}\n[spark.conf]\n{names}"), "spark://spark:7077", lake)
        return {
            name.removeprefix("spark.hadoop.fs.s3a."): value for name, value in of.items() if "s3a" in name
        }

    keys = {
        "bucket.lakes.access.key": "key",
        "bucket.lakes.secret.key": "hunter2",
        "bucket.lakes.session.token": "now",
    }
    assert result(amazon) == keys | {"bucket.lakes.endpoint.region": "eu-west-1"}
    place = {
        "bucket.lakes.endpoint": "http://minio:9000",
        "bucket.lakes.endpoint.region": "us-east-1",
        "bucket.lakes.path.style.access": "true",
    }
    assert result(other) == keys | place
    by_host = Lake("s3://lakes", (other.storage_options or {}) | {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"})
    assert result(by_host)["bucket.lakes.path.style.access"] == "false"
    # Keys are a pair, of one user.
    own = {"access.key": "mine", "secret.key": "mine-too", "bucket.lakes.path.style.access": "false"}
    assert result(other, **own) == place | own
    provider = {"aws.credentials.provider": "org.example.Provider"}
    assert result(amazon, **provider) == {"bucket.lakes.endpoint.region": "eu-west-1"} | provider
    assert (
        result(Lake("s3://lakes"))
        == result(Lake.of("gs://lakes", options))
        == result(Lake(str(tmp_path)))
        == {}
    )


def test_hadoops_client_of_s3_comes_without_the_bundle_of_all_services(tmp_path: Path) -> None:
    def packages(lake: str, more: str = "") -> tuple[list[str], str]:
        result = configs(spec(tmp_path, PARQUET + more), None, Lake(lake))
        names = (item.split(":")[1] for item in result.get("spark.jars.packages", "").split(",") if item)
        return list(names), result.get("spark.jars.excludes", "")

    names, excludes = packages("s3://lakes/korvet")
    assert names == ["hadoop-aws", "s3-transfer-manager", "sts", "apache-client"]
    assert excludes.startswith("software.amazon.awssdk:bundle,")
    own = '\n[spark]\npackages = ["org.apache.hadoop:hadoop-aws:3.5.0"]'
    assert packages("s3://lakes/korvet", own) == (["hadoop-aws"], "")
    assert packages(str(tmp_path)) == ([], "")
