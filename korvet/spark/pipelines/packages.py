"""Spark as a pipeline needs it: Delta Lake and Avro are not part of PySpark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pyspark
from py4j.java_gateway import JavaPackage
from pyspark.sql import SparkSession

from korvet.spark import is_submitted
from korvet.spark.pipelines.avro import LIMITS
from korvet.spark.pipelines.spec import PipelineError, PipelineSpec

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_DELTA_VERSION = "4.4.0"
_CLASSES = {
    "delta-spark": "io.delta.tables.DeltaTable",
    "spark-avro": "org.apache.spark.sql.avro.AvroDataToCatalyst",
}
_PACKAGES = "spark.jars.packages"
_EXECUTORS = "spark.executor.extraJavaOptions"
_JARS = ("spark.jars", "spark.driver.extraClassPath")


def configs(spec: PipelineSpec, master: str | None) -> dict[str, str]:
    """Return Spark's settings for a pipeline on a master, None: on this machine, or where spark-submit says.

    Those of its file win. By spark-submit, what they say of packages and of the driver's Java comes too late (`check`).
    """
    found = dict(_DELTA) if _needs_delta(spec) else {}
    if not is_submitted() if master is None else master.startswith("local"):
        # As many parts as cores: more cost more than they even out, and a checkpoint keeps their number.
        found["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
    if "avro" in _formats(spec):
        # That of the driver gets them when it decodes; its options say how it logs.
        found[_EXECUTORS] = " ".join(
            [*(f"-D{name}={most}" for name, most in LIMITS.items()), spec.spark.conf.get(_EXECUTORS, "")]
        ).strip()
    packages = [*spec.spark.packages, *_missing(spec)]
    if packages:
        found[_PACKAGES] = ",".join(packages)
    return found | {
        name: value for name, value in spec.spark.conf.items() if name != _EXECUTORS or name not in found
    }


def _formats(spec: PipelineSpec) -> set[str]:
    return {each.format for of in spec.sources.values() for each in (of.key, of.value)}


def _needs_delta(spec: PipelineSpec) -> bool:
    return spec.target.type == "delta" or spec.has_dead_letters


def _needed(spec: PipelineSpec) -> dict[str, str]:
    """Return the packages that a pipeline needs and PySpark does not have, by the names of their jars."""
    minor = ".".join(pyspark.__version__.split(".")[:2])
    found = {}
    if _needs_delta(spec):
        found["delta-spark"] = f"io.delta:delta-spark_{minor}_2.13:{_DELTA_VERSION}"
    if "avro" in _formats(spec):
        # Protobuf is decoded in Python: its jar is at few mirrors.
        found["spark-avro"] = f"org.apache.spark:spark-avro_2.13:{pyspark.__version__}"
    return found


def _missing(spec: PipelineSpec) -> Iterator[str]:
    """Yield the packages whose jars neither PySpark nor the file has."""
    given = ",".join([*(spec.spark.conf.get(name, "") for name in (*_JARS, _PACKAGES)), *spec.spark.packages])
    jars = given + ",".join(each.name for each in (Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    for name, package in _needed(spec).items():
        if f"{name}_" not in jars:
            yield package


def check(session: SparkSession, spec: PipelineSpec) -> None:
    """Raise PipelineError if Java lacks what a pipeline needs."""
    for name, package in _needed(spec).items():
        # Py4J has a package where there is no class.
        if isinstance(reduce(getattr, _CLASSES[name].split("."), session._jvm), JavaPackage):  # noqa: SLF001 - PySpark does not tell
            raise PipelineError(
                f"Java has started without {name}: give spark-submit --packages {package}"
                if is_submitted()
                else f"Java has no {name}: set spark.packages, or spark.jars in spark.conf"
            )
