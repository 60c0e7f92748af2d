"""Where the rows of a pipeline go in micro-batches: Delta tables, each batch exactly once.

A commit carries the id of the query and the number of the batch (Delta's txnAppId and txnVersion). A batch that Spark
repeats after a crash, because its end was not noted yet, finds its commit there and changes nothing.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.functions import (
    col,
    expr,
    lit,
    map_from_arrays,
    map_keys,
    map_values,
    struct,
    transform,
    when,
)
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from korvet import logs
from korvet.admin.errors import AdminError
from korvet.admin.types import TopicId
from korvet.spark.names import quoted
from korvet.spark.options import sink_options
from korvet.spark.pipelines.spec import PipelineError, TargetSpec
from korvet.spark.pipelines.state import PIPELINES, location
from korvet.spark.pipelines.tables import TableUpkeep, commit, hadoop, register
from korvet.spark.session import JOB_ERRORS, root_reason
from korvet.spark.sink import checked_options

_log = logs.Log(__name__)

_APP_ID, _VERSION = "txnAppId", "txnVersion"
_CONF = "spark.databricks.delta.write."
"""Before the same names: where statements have them, which take no options."""

_TYPE_WIDENING = "delta.enableTypeWidening"

_LOSES = (
    (LongType, DoubleType),
    (LongType, FloatType),
    (IntegerType, FloatType),
    (LongType, TimestampType),
    (TimestampType, LongType),
)
"""What Spark takes for wider and is not: numbers are rounded, and times become seconds."""

_ROWS, _RANK = "_korvet_rows", "_korvet_rank"


class Batch(NamedTuple):
    """A micro-batch: the id of its query, which a new checkpoint changes, and its number there."""

    app_id: str
    version: int


class DeltaTarget:
    """A Delta table that batches are appended to, merged into by key, or whose partitions they replace."""

    def __init__(self, session: SparkSession, spec: TargetSpec, path: str, place: str = "target") -> None:
        """Write to `path`; `place` is where the file of the pipeline has the table, for errors."""
        self.path = path
        self._session = session
        self._spec = spec
        self._place = place
        self._types: dict[str, DataType] = {}
        self._upkeep = TableUpkeep(session, path) if spec.upkeep else None

    def check(self, schema: StructType) -> None:
        """Raise PipelineError if rows of this schema cannot be written as declared."""
        self._changes(schema)

    def prepare(self, schema: StructType) -> None:
        """Create the table, or let it follow the schema of the rows as far as it may; raises PipelineError."""
        try:
            commit(self.path, lambda: self._follow(schema))
        except JOB_ERRORS as error:
            raise PipelineError(f"{self._place}.path: {self.path}: {root_reason(error)}") from error
        if self._spec.table is not None:
            register(self._session, self._spec.table, self.path)
        self._types = {name: field.dataType for name, field in by_name(self._table()).items()}

    def _follow(self, schema: StructType) -> None:
        written, changes = self._written(schema), self._changes(schema)
        if not self._exists():
            self._writer(self._empty(written)).mode("append").save(self.path)
        elif changes:
            self._evolve(written)

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write a batch, unless that was done; then do the table's upkeep."""
        commit(self.path, lambda: self._write(rows, batch))
        if self._upkeep is not None:
            self._upkeep.after_batch()

    def _write(self, rows: DataFrame, batch: Batch) -> None:
        if self._spec.mode == "merge":
            self._merge(rows, batch)
            return
        writer = self._writer(self._cast(rows))
        writer = writer.option(_APP_ID, batch.app_id).option(_VERSION, batch.version)
        if self._spec.mode == "overwrite":
            writer.mode("overwrite").option("partitionOverwriteMode", "dynamic").save(self.path)
        else:
            writer.mode("append").save(self.path)

    def _merge(self, rows: DataFrame, batch: Batch) -> None:
        session, deletes = rows.sparkSession, self._spec.delete_when
        kept = self._last_of_each_key(self._cast(rows))
        kept.createOrReplaceTempView(_ROWS)
        names = [quoted(name) for name in rows.columns if name != deletes]
        keys = set(map(quoted, self._spec.key))
        on = " AND ".join(f"t.{key} <=> s.{key}" for key in map(quoted, self._spec.key))
        sets = ", ".join(f"t.{name} = s.{name}" for name in names if name not in keys)
        deleted = f"s.{quoted(deletes)}" if deletes else "false"
        matched = f"WHEN MATCHED{self._not_older()}"
        clauses = [f"{matched} AND {deleted} THEN DELETE"] if deletes else []
        if sets:
            clauses.append(f"{matched} THEN UPDATE SET {sets}")
        values = ", ".join(f"s.{name}" for name in names)
        insert = f"INSERT ({', '.join(names)}) VALUES ({values})"  # noqa: S608 - names are quoted
        clauses.append(f"WHEN NOT MATCHED AND NOT coalesce({deleted}, false) THEN {insert}")
        merge = f"MERGE INTO delta.{quoted(self.path)} t USING {_ROWS} s ON {on} {' '.join(clauses)}"
        with _transaction(session, batch):
            session.sql(merge)

    def _not_older(self) -> str:
        """Return the condition that a row is no older than the table's, whichever batch it comes in; null is oldest."""
        order = tuple(map(quoted, self._spec.order_by))
        here, there = (", ".join(f"{side}.{name}" for name in order) for side in "st")
        return f" AND struct({here}) >= struct({there})" if order else ""

    def _last_of_each_key(self, rows: DataFrame) -> DataFrame:
        keys = ", ".join(map(quoted, self._spec.key))
        if self._spec.order_by:
            order = ", ".join(f"{quoted(name)} DESC" for name in self._spec.order_by)
            ranked = rows.withColumn(_RANK, expr(f"row_number() OVER (PARTITION BY {keys} ORDER BY {order})"))
            return ranked.where(f"{_RANK} = 1").drop(_RANK)
        # Nothing says which of two rows is the newer one, so there have to be none.
        counted = rows.withColumn(_RANK, expr(f"count(*) OVER (PARTITION BY {keys})"))
        problem = f"{self._place}.order_by is required: a batch has several rows of one key"
        return counted.where(f"CASE WHEN {_RANK} = 1 THEN true ELSE raise_error('{problem}') END").drop(_RANK)

    def _writer(self, rows: DataFrame) -> DataFrameWriter:
        writer = rows.write.format("delta").options(**self._spec.options)
        return writer.partitionBy(*self._spec.partition_by) if self._spec.partition_by else writer

    def _cast(self, rows: DataFrame) -> DataFrame:
        """Return rows in the types of the table, which may be wider."""
        return rows.select(
            *(
                fitted(col(quoted(field.name)), field.dataType, self._types[field.name.lower()]).alias(
                    field.name
                )
                if field.name.lower() in self._types
                else col(quoted(field.name))
                for field in rows.schema
            )
        )

    def _written(self, schema: StructType) -> StructType:
        return StructType(
            [
                StructField(field.name, field.dataType)
                for field in schema
                if field.name != self._spec.delete_when
            ]
        )

    def _changes(self, schema: StructType) -> bool:
        """Return whether the table has to change for the rows; raises PipelineError if it must not."""
        spec = self._spec
        for setting in ("key", "order_by", "partition_by"):
            for name in getattr(spec, setting):
                if name not in schema.names:
                    raise PipelineError(f"{self._place}.{setting}: the result has no column {name}")
        if spec.delete_when is not None:
            changes = (
                schema[spec.delete_when].dataType.simpleString() if spec.delete_when in schema.names else None
            )
            if changes != "boolean":
                is_type = "does not exist" if changes is None else f"is {changes}"
                raise PipelineError(
                    f"{self._place}.delete_when: the column {spec.delete_when} is no boolean: it {is_type}"
                )
        doubled = {name for name in schema.names if schema.names.count(name) > 1}
        if doubled:
            raise PipelineError(
                f"{self._place}: the result has two columns {doubled.pop()}: give one another name"
            )
        if not self._exists():
            return False
        return self._differs(self._written(schema), self._table())

    def _differs(self, wanted: DataType, there: DataType, at: str = "") -> bool:
        """Return whether a type has to change for values of `wanted`; raises PipelineError if it must not."""
        evolution, where = self._spec.schema_evolution, f"{self._place}.schema_evolution"
        match wanted, there:
            case StructType(), StructType():
                fields = by_name(there)
                # Each is looked at: any of them may be wrong.
                changes = [self._field_differs(field, fields, at) for field in wanted]
                return any(changes)
            case ArrayType(), ArrayType():
                return self._differs(wanted.elementType, there.elementType, f"{at}.element")
            case MapType(), MapType():
                keys = self._differs(wanted.keyType, there.keyType, f"{at}.key")
                return self._differs(wanted.valueType, there.valueType, f"{at}.value") or keys
        if wanted == there or self._widens(wanted, there):
            return False
        # Text has a form for any value, but no column becomes text.
        widens = not isinstance(wanted, StringType) and self._widens(there, wanted)
        if widens and evolution == "widen":
            return True
        types = f"is {there.simpleString()} there, and {wanted.simpleString()} in the result"
        hint = '; "widen" makes it so' if widens else ""
        raise PipelineError(f"{where}: the column {at} of {self.path} {types}{hint}")

    def _field_differs(self, wanted: StructField, there: Mapping[str, StructField], at: str) -> bool:
        name = f"{at}.{wanted.name}" if at else wanted.name
        field = there.get(wanted.name.lower())
        if field is not None:
            return self._differs(wanted.dataType, field.dataType, name)
        if self._spec.schema_evolution == "none":
            raise PipelineError(
                f'{self._place}.schema_evolution: {self.path} has no column {name}; "add_columns" adds it'
            )
        return True

    def _widens(self, narrow: DataType, wide: DataType) -> bool:
        """Return whether all values of one type are values of another; a text is no wider number."""
        if (type(narrow), type(wide)) in _LOSES or isinstance(wide, StringType) != isinstance(
            narrow, StringType
        ):
            return False
        parse = self._session._jvm.org.apache.spark.sql.types.DataType.fromJson  # type: ignore[union-attr]  # noqa: SLF001 - Spark's own rule, which Python has not
        casts: Any = self._session._jvm.org.apache.spark.sql.catalyst.expressions.Cast  # type: ignore[union-attr]  # noqa: SLF001 - the same
        return bool(casts.canUpCast(parse(narrow.json()), parse(wide.json())))

    def _evolve(self, written: StructType) -> None:
        there = self._table()
        wide = self._widened(written, there)
        if wide != there:
            detail = self._session.sql(f"DESCRIBE DETAIL delta.{quoted(self.path)}").collect()[0]
            # Other readers than Spark do not read a table that has ever changed a type in place.
            if detail["properties"].get(_TYPE_WIDENING) != "true":
                self._rewrite(there, cast("StructType", wide), detail["partitionColumns"])
        empty = self._writer(self._empty(written))
        empty.mode("append").option("mergeSchema", "true").save(self.path)

    def _widened(self, wanted: DataType, there: DataType) -> DataType:
        """Return the type of a table, or of a column, in which values of `wanted` fit; new columns are not in it."""
        match wanted, there:
            case StructType(), StructType():
                given = by_name(wanted)
                return StructType(
                    [
                        StructField(
                            field.name, self._widened(source.dataType, field.dataType), field.nullable
                        )
                        if (source := given.get(field.name.lower()))
                        else field
                        for field in there
                    ]
                )
            case ArrayType(), ArrayType():
                return ArrayType(self._widened(wanted.elementType, there.elementType), there.containsNull)
            case MapType(), MapType():
                key = self._widened(wanted.keyType, there.keyType)
                value = self._widened(wanted.valueType, there.valueType)
                return MapType(key, value, there.valueContainsNull)
        return there if wanted == there or self._widens(wanted, there) else wanted

    def _rewrite(self, there: StructType, wide: StructType, partition_by: list[str]) -> None:
        """Write all rows of the table with larger types, as one commit."""
        _log.info("a table is rewritten with larger types", path=self.path)
        rows = self._session.read.format("delta").load(self.path)
        columns = (
            fitted(col(quoted(field.name)), there[field.name].dataType, field.dataType).alias(field.name)
            for field in wide
        )
        writer = rows.select(*columns).write.format("delta").mode("overwrite")
        writer.option("overwriteSchema", "true").partitionBy(*partition_by).save(self.path)

    def _empty(self, schema: StructType) -> DataFrame:
        # A frame of Python's rows would start a Python worker.
        columns = (lit(None).cast(field.dataType).alias(field.name) for field in schema)
        return self._session.range(0).limit(0).select(*columns)

    def _exists(self) -> bool:
        delta: Any = self._session._jvm.io.delta.tables.DeltaTable  # type: ignore[union-attr]  # noqa: SLF001 - Delta's package for Python may not be installed
        return bool(delta.isDeltaTable(self._session._jsparkSession, self.path))  # noqa: SLF001 - the same

    def _table(self) -> StructType:
        return self._session.read.format("delta").load(self.path).schema


class TopicTarget:
    """A topic, whose rows are records of the columns that the format `korvet` writes."""

    def __init__(self, spec: TargetSpec, options: Mapping[str, str]) -> None:
        self._options = {"topic": spec.topic or "", **options, **spec.options}

    def check(self, schema: StructType) -> None:
        """Raise PipelineError if rows of this schema are no records."""
        try:
            checked_options(sink_options(self._options, streaming=True), schema)
        except (ValueError, AdminError) as error:
            raise PipelineError(f"target: {error}") from error

    def prepare(self, schema: StructType) -> None:
        """Do nothing: the topic is there."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write a batch, unless that was done."""
        once = {_APP_ID: batch.app_id, _VERSION: str(batch.version)}
        rows.write.format("korvet").options(**self._options, **once).mode("append").save()


class ParquetTarget:
    """A directory of Parquet files, written by Spark's own sink: the valid ones are listed in `_spark_metadata`."""

    def __init__(self, session: SparkSession, spec: TargetSpec, path: str, *, begun: bool) -> None:
        """Write to `path`; `begun` if the query has a checkpoint already."""
        self._session = session
        self._spec = spec
        self._path = path
        self._begun = begun

    def check(self, schema: StructType) -> None:
        """Raise PipelineError if a column to partition by is missing, or the files are of another checkpoint."""
        for name in self._spec.partition_by:
            if name not in schema.names:
                raise PipelineError(f"target.partition_by: the result has no column {name}")
        if not self._begun:
            self.check_new()

    def check_new(self) -> None:
        """Raise PipelineError if the files are of another checkpoint."""
        files, metadata = hadoop(self._session, f"{self._path}/_spark_metadata")
        # Spark leaves out a batch whose number is there already, whichever query wrote that.
        if files.exists(metadata):
            raise PipelineError(
                f"target.path: {self._path} has files of another checkpoint: give another path, or remove it"
            )

    def prepare(self, schema: StructType) -> None:
        """Do nothing: Spark creates the directory."""

    def sink(self, writer: DataStreamWriter) -> DataStreamWriter:
        """Return a query's writer with this target."""
        writer = writer.format("parquet").options(**self._spec.options).option("path", self._path)
        return writer.partitionBy(*self._spec.partition_by) if self._spec.partition_by else writer


def check_place(session: SparkSession, lake: str, path: str, place: str) -> None:
    """Raise PipelineError if a path lies over what the lake has of its own: a VACUUM there would delete it."""
    root, target = (_normal(location(lake, below)) for below in ("", path))
    first = target.removeprefix(f"{root}/").partition("/")[0]
    own = f"{root}/".startswith(f"{target.rstrip('/')}/")
    if not own and target.startswith(f"{root}/"):
        own = first == PIPELINES or _has_archive(session, f"{root}/{first}")
    if own:
        raise PipelineError(
            f"{place}.path: {target} lies over archived topics or pipelines of the lake: give another, as tables/NAME"
        )


def _normal(where: str) -> str:
    scheme, separator, path = where.removeprefix("file://").rpartition("://")
    return f"{scheme}{separator}{posixpath.normpath(path)}"


def _has_archive(session: SparkSession, directory: str) -> bool:
    """Return whether a directory is a topic's: its tables are named by ids of topics."""
    files, path = hadoop(session, directory)
    if not files.exists(path):
        return False
    for status in files.listStatus(path):
        name = str(status.getPath().getName())
        with contextlib.suppress(ValueError):
            TopicId.of(name)
            if files.exists(hadoop(session, f"{directory}/{name}/_delta_log")[1]):
                return True
    return False


Target: TypeAlias = DeltaTarget | TopicTarget | ParquetTarget


@contextlib.contextmanager
def _transaction(session: SparkSession, batch: Batch) -> Iterator[None]:
    """Let the statements of a session commit as one batch."""
    session.conf.set(_CONF + _APP_ID, batch.app_id)
    session.conf.set(_CONF + _VERSION, str(batch.version))
    try:
        yield
    finally:
        session.conf.unset(_CONF + _APP_ID)
        session.conf.unset(_CONF + _VERSION)


def by_name(schema: StructType) -> dict[str, StructField]:
    """Return the fields of a struct by their names in lower case: Spark and Delta tell them apart by these."""
    return {part.name.lower(): part for part in schema}


def fitted(value: Column, given: DataType, wanted: DataType) -> Column:
    """Return a value in another type, fields of structs by their names, NULL if missing: a cast goes by their order."""
    match given, wanted:
        case StructType(), StructType():
            fields = by_name(given)
            made = [
                fitted(value.getField(source.name), source.dataType, field.dataType).alias(field.name)
                if (source := fields.get(field.name.lower()))
                else lit(None).cast(field.dataType).alias(field.name)
                for field in wanted
            ]
            return when(value.isNotNull(), struct(*made))
        case ArrayType(), ArrayType():
            return transform(value, lambda element: fitted(element, given.elementType, wanted.elementType))
        case MapType(), MapType():
            keys = fitted(map_keys(value), ArrayType(given.keyType), ArrayType(wanted.keyType))
            values = fitted(map_values(value), ArrayType(given.valueType), ArrayType(wanted.valueType))
            return map_from_arrays(keys, values)
    return value if given == wanted else value.cast(wanted)
