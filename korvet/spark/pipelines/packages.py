"""Spark as a pipeline needs it: with Delta Lake, Avro and S3, which PySpark lacks, and the keys of a lake in S3."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from urllib.parse import urlsplit

import pyspark
from py4j.java_gateway import JavaPackage
from pyspark.sql import SparkSession

from korvet.lake.table import Lake
from korvet.spark import is_submitted
from korvet.spark.pipelines.avro import LIMITS
from korvet.spark.pipelines.spec import PipelineError, PipelineSpec

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Of OPTIMIZE: what has half of the size is not written again (by default of 1 GB).
    "spark.databricks.delta.optimize.minFileSize": str(64 * 1024 * 1024),
    "spark.databricks.delta.optimize.maxFileSize": str(128 * 1024 * 1024),
}
_DELTA_VERSION = "4.4.0"
_SPARK_OF_DELTA = "4.2"
"""The Spark that this version of Delta Lake is for; of a later Spark none was released yet."""
_CLASSES = {
    "delta-spark": "io.delta.tables.DeltaTable",
    "spark-avro": "org.apache.spark.sql.avro.AvroDataToCatalyst",
    "hadoop-aws": "org.apache.hadoop.fs.s3a.S3AFileSystem",
}
_PACKAGES = "spark.jars.packages"
_EXCLUDES = "spark.jars.excludes"
_EXECUTORS = "spark.executor.extraJavaOptions"
_JAVA = "spark.driver.defaultJavaOptions"
_JARS = ("spark.jars", "spark.driver.extraClassPath")
_JAR_FILES = Path(pyspark.__file__).parent / "jars"

_AWS = "software.amazon.awssdk"
_AWS_VERSION = "2.35.4"
_AWS_PARTS = ("s3-transfer-manager", "sts", "apache-client")
"""What Hadoop's client of S3 uses of AWS' SDK: the bundle that it names, of all services, has 686 MB."""

_NOT_OF_S3 = (
    *(f"{_AWS}:bundle", "org.wildfly.openssl:*"),
    # Spark has these.
    *("io.netty:*", "org.slf4j:*", "commons-codec:*", "commons-logging:*"),
)
_S3A = "spark.hadoop.fs.s3a."
_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "access.key",
    "AWS_SECRET_ACCESS_KEY": "secret.key",
    "AWS_SESSION_TOKEN": "session.token",
}
_PLACE = {"AWS_REGION": "endpoint.region", "AWS_ENDPOINT_URL": "endpoint"}
"""Options of the lake, and the settings of Hadoop's client of S3 for the same."""


def configs(spec: PipelineSpec, master: str | None, lake: Lake) -> dict[str, str]:
    """Return Spark's settings for a pipeline on a master, None: on this machine, or where spark-submit says.

    Those of its file win. By spark-submit, what they say of packages and of the driver's Java comes too late (`check`).
    """
    settings = bucket_configs(lake, spec.spark.conf)
    if _needs_delta(spec):
        settings |= _DELTA
    if not is_submitted() if master is None else master.startswith("local"):
        # As many parts as cores: more cost more than they even out, and a checkpoint keeps their number.
        settings["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
    if spec.trigger.available_now:
        # A run that ends soon does not get back what Java's second compiler costs: a third of its CPU.
        settings[_JAVA] = "-XX:TieredStopAtLevel=1"
    if "avro" in _formats(spec):
        # That of the driver gets them when it decodes; its options say how it logs.
        settings[_EXECUTORS] = " ".join(
            [*(f"-D{name}={most}" for name, most in LIMITS.items()), spec.spark.conf.get(_EXECUTORS, "")]
        ).strip()
    missing = list(_missing(spec, lake))
    if packages := [*spec.spark.packages, *missing]:
        settings[_PACKAGES] = ",".join(packages)
    if any(_AWS in package for package in missing):
        settings[_EXCLUDES] = ",".join(_NOT_OF_S3)
    return settings | {
        name: value for name, value in spec.spark.conf.items() if name != _EXECUTORS or name not in settings
    }


def _formats(spec: PipelineSpec) -> set[str]:
    return {decoding.format for of in spec.sources.values() for decoding in (of.key, of.value)}


def _needs_delta(spec: PipelineSpec) -> bool:
    return spec.target.type == "delta" or spec.has_dead_letters


def _bucket(lake: Lake) -> str:
    """Return the bucket of S3 that a lake is in, empty if it is elsewhere."""
    place = urlsplit(lake.path)
    return place.netloc if place.scheme in ("s3", "s3a") else ""


def bucket_configs(lake: Lake, given: Iterable[str] = ()) -> dict[str, str]:
    """Return Spark's settings by which Hadoop reaches a lake in S3: its options, but for what `given` settings say.

    They are of its bucket alone: a table may be in another store. With secrets, if the options have them.
    """
    bucket = _bucket(lake)
    if not bucket:
        return {}
    of_bucket = f"{_S3A}bucket.{bucket}."
    own = {name.removeprefix(of_bucket).removeprefix(_S3A) for name in given}
    options = {name.upper(): value for name, value in (lake.storage_options or {}).items()}
    names = dict(_PLACE)
    # Credentials go together.
    if own.isdisjoint({*_CREDENTIALS.values(), "aws.credentials.provider"}):
        names |= _CREDENTIALS
    settings = {setting: options[name] for name, setting in names.items() if name in options}
    if "endpoint" in settings:
        # As deltalake does by default.
        by_host = options.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "false").lower() == "true"
        settings = {"endpoint.region": "us-east-1", "path.style.access": str(not by_host).lower()} | settings
    return {of_bucket + name: value for name, value in settings.items() if name not in own}


def _needed(spec: PipelineSpec, lake: Lake) -> dict[str, list[str]]:
    """Return the packages that a pipeline needs and PySpark does not have, by the names of their jars."""
    minor = ".".join(pyspark.__version__.split(".")[:2])
    packages = {}
    if _needs_delta(spec):
        packages["delta-spark"] = [f"io.delta:delta-spark_{minor}_2.13:{_DELTA_VERSION}"]
    if "avro" in _formats(spec):
        # Protobuf is decoded in Python: its jar is at few mirrors.
        packages["spark-avro"] = [f"org.apache.spark:spark-avro_2.13:{pyspark.__version__}"]
    # A PySpark without Hadoop runs with one whose version is not known here.
    hadoop = [jar.stem.rpartition("-")[2] for jar in _JAR_FILES.glob("hadoop-client-api-*.jar")]
    if _bucket(lake) and hadoop:
        parts = (f"{_AWS}:{part}:{_AWS_VERSION}" for part in _AWS_PARTS)
        packages["hadoop-aws"] = [f"org.apache.hadoop:hadoop-aws:{hadoop[0]}", *parts]
    return packages


def _missing(spec: PipelineSpec, lake: Lake) -> Iterator[str]:
    """Yield the packages whose jars neither PySpark nor the file has; raises PipelineError if there is none."""
    given = ",".join([*(spec.spark.conf.get(name, "") for name in (*_JARS, _PACKAGES)), *spec.spark.packages])
    jars = given + ",".join(jar.name for jar in _JAR_FILES.glob("*.jar"))
    for name, packages in _needed(spec, lake).items():
        if re.search(rf"\b{name}[_:-]", jars):
            continue
        if name == "delta-spark" and not pyspark.__version__.startswith(f"{_SPARK_OF_DELTA}."):
            raise PipelineError(
                f"there is no Delta Lake {_DELTA_VERSION} for Spark {pyspark.__version__}: install pyspark"
                f" {_SPARK_OF_DELTA}, or name one by spark.packages"
            )
        yield from packages


def check(session: SparkSession, spec: PipelineSpec, lake: Lake) -> None:
    """Raise PipelineError if Java lacks what a pipeline needs."""
    for name, packages in _needed(spec, lake).items():
        # Py4J has a package where there is no class.
        if isinstance(reduce(getattr, _CLASSES[name].split("."), session._jvm), JavaPackage):  # noqa: SLF001 - PySpark does not tell
            raise PipelineError(
                f"Java has started without {name}: give spark-submit --packages {','.join(packages)}"
                if is_submitted()
                else f"Java has no {name}: set spark.packages, or spark.jars in spark.conf"
            )
