"""A pipeline's queries: made of its file, run until they are stopped or have read all there is.

`main` brings the rows to the target. Where records that do not decode are kept, a query of its own for each source
brings them there: it reads and decodes the records once more, and finds them whatever the transformation does.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeAlias

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from korvet import logs
from korvet.cluster.pipelines import MAIN
from korvet.errors import ErrorCode
from korvet.lake.scan import LOSS_REMEDY
from korvet.lake.source import LakeSource
from korvet.spark.options import storage_text
from korvet.spark.pipelines import packages
from korvet.spark.pipelines.decoding import DecoderState, decode, digest
from korvet.spark.pipelines.listener import ProgressListener
from korvet.spark.pipelines.plan import Plan, bad, batch_frame, plan, source_frame, start_of
from korvet.spark.pipelines.registry import SchemaRegistry
from korvet.spark.pipelines.reset import kept
from korvet.spark.pipelines.schemas import NewSchemaError, met_unknown_schema
from korvet.spark.pipelines.spec import PipelineError, PipelineSpec, SourceSpec, TargetSpec
from korvet.spark.pipelines.state import (
    PIPELINES,
    Begun,
    QueryProgress,
    SourcePosition,
    StateDirectory,
    UnwrittenPins,
    dead_letters_of,
    location,
    merged,
    start_file,
    target_fields,
)
from korvet.spark.pipelines.status import PipelineReporter
from korvet.spark.pipelines.targets import Batch, DeltaTarget, ParquetTarget, Target, TopicTarget, check_place
from korvet.spark.session import JOB_ERRORS, is_stopped, root_reason

_POLL_S = 0.2
_BATCH_END_S_MAX = 30.0
"""How long a batch under way may take when the pipeline is stopped; a longer one is repeated by the next run."""


_PASSING = (
    "Timed out while waiting for the Python worker",
    "Python worker failed to connect back",
    ErrorCode.KAFKA_STORAGE_ERROR.name,
    ErrorCode.OFFSET_NOT_AVAILABLE.name,
)
"""Transient errors: a busy machine; a Redis, a store or replicas that do not answer."""

_ATTEMPTS_MAX = 5
"""Without a batch between them; a minute together. Then it is for those who watch the process."""

_INTERRUPTED = "py4j.protocol.Py4JJavaError: An error occurred while calling: java.lang.InterruptedException"
"""How Spark knows that a batch has failed because its query was stopped; of any other query it ends the same."""

_log = logs.Log(__name__)

_Sink: TypeAlias = Callable[[DataStreamWriter], DataStreamWriter]


class PipelineContext(NamedTuple):
    """Where a pipeline runs: a session, the log with its lake, and for a topic as the target options of its brokers."""

    session: SparkSession
    source: LakeSource
    brokers: Mapping[str, str]


class Pipeline:
    """A pipeline that was found to be right: its plan, its target, and its state. Nothing has begun yet."""

    def __init__(self, context: PipelineContext, spec: PipelineSpec) -> None:
        """Raise PipelineError if it cannot run as declared, or its checkpoints were begun with something else.

        Nothing is written to its directory, which another process may hold.
        """
        self._place = context
        self._spec = spec
        session, lake = context.session, context.source.lake.path
        packages.check(session, spec, context.source.lake)
        self.state = StateDirectory(session, lake, spec.name)
        registry = None if spec.registry is None else SchemaRegistry(spec.registry)
        self._pins = UnwrittenPins(self.state)
        self._decoding = DecoderState(
            self._pins, lambda source: batch_frame(session, context.source, source), registry
        )
        self._starts: dict[str, str] = {}
        self._range_ends: dict[str, str] = {}
        """Where a range ends, if the pipeline reads one."""
        self._ends: dict[str, str] = {}
        """The same, or an earlier place while queries that are behind have to read the same as others."""
        self._resumed: dict[str, int | None] = {}
        """The batch that each query had begun and not committed when it was started: it may have been written."""
        self._failures: dict[str, Exception] = {}
        self._failed_attempts: Counter[str] = Counter()
        """How often each query has failed since its last batch; those of another one say nothing of it."""
        self._failed = ""
        self._is_prepared = False
        self._changes = self._decoding.follow(spec.sources.values())
        """Schemas that are read by from now on, and were not before."""
        self._dead: DeltaTarget | None = None
        with self._changes_named(), _spark_errors():
            if spec.target.path is not None:
                check_place(session, lake, spec.target.path, "target")
            if spec.has_dead_letters:
                check_place(session, lake, spec.dead_letters_path, "dead_letters")
            self._declare()
            if spec.has_dead_letters:
                dead = TargetSpec(type="delta", path=spec.dead_letters_path, upkeep=spec.target.upkeep)
                self._dead = _delta(context, dead, "dead_letters")
                self._dead.check(self._dead_schema())
            self.state.check(self._begun, self.queries, levels=bool(self._changes))

    def _declare(self) -> None:
        self._plan = self._make_plan()
        self._target = self._make_target()
        self._target.check(self.schema)
        self._begun = self._begin()

    @property
    def queries(self) -> list[str]:
        """The names of the queries."""
        return list(self._reads)

    @property
    def schema(self) -> StructType:
        """The schema of the result."""
        return self._plan.rows.schema

    def run(self, stopped: threading.Event, reporter: PipelineReporter) -> None:
        """Run until `stopped`, or all is read; raises PipelineError if a query fails, and not only for the moment."""
        learned = set[str]()
        while True:
            self._failed = ""
            try:
                if not self._prepare(stopped, reporter):
                    return
                self._pin_starts()
                self._run_queries(stopped, reporter)
            except PipelineError as error:
                new = NewSchemaError.of(error)
                if new is not None and str(new) not in learned:
                    learned.add(str(new))
                    self._learn(new)
                    continue
                self._failed_attempts[self._failed] += 1
                attempts = self._failed_attempts[self._failed]
                if not _passes(error) or attempts > _ATTEMPTS_MAX or is_stopped(self._place.session):
                    raise
                _log.warning("a query is started again", pipeline=self._spec.name, reason=error)
                stopped.wait(2.0**attempts)
            else:
                if self._dead is not None and reporter.has_lease:
                    self._level(reporter)
                return

    def _prepare(self, stopped: threading.Event, reporter: PipelineReporter) -> bool:
        """Keep what the queries are begun with; return False if `stopped` before they may begin."""
        if self._is_prepared:
            return True
        if self._changes and self.state.incarnation(MAIN) is not None:
            self._finish_as_begun(stopped, reporter)
            if stopped.is_set():
                return False
        with self._changes_named(), _spark_errors():
            self.state.begin(self._begun, self.queries)
            self._pins.write_all()
            self._prepare_tables()
        for change in self._changes:
            _log.info("records are read by a new schema", pipeline=self._spec.name, change=change)
        self._changes = []
        self._is_prepared = True
        return True

    def _prepare_tables(self) -> None:
        self._target.prepare(self.schema)
        if self._dead is not None:
            self._dead.prepare(self._dead_schema())

    def _finish_as_begun(self, stopped: threading.Event, reporter: PipelineReporter) -> None:
        """Finish batches by the schemas that they were begun with, up to where queries of one source are level.

        So a batch that may have been written is repeated as it was, and no record is decoded by the old schema for one
        query and by the new one for the other.
        """
        newest, self._decoding = self._decoding, self._decoding._replace(pins=UnwrittenPins(self.state))
        try:
            with _spark_errors():
                self._pin_starts()
                self._plan = self._make_plan()
                self.state.check(self._begin(), self.queries)
                self._prepare_tables()
            for _ in range(2 * len(self.queries)):
                try:
                    self._read_the_same(reporter, stopped)
                    break
                except PipelineError as error:
                    new = NewSchemaError.of(error)
                    if new is None:
                        raise
                    if self.state.pending(self._failed) is not None:
                        # Its batch may have been written before a crash: it is repeated as it was begun.
                        for decoding in (self._decoding._replace(pins=self.state), newest):
                            decoding.learn(new)
                        self._plan = self._make_plan()
        except PipelineError as error:
            if _passes(error):
                raise
            _log.warning(
                "what was begun by the schema before is not finished", pipeline=self._spec.name, reason=error
            )
        finally:
            self._decoding = newest
        with _spark_errors():
            self._ends = self._range_ends
            self._plan = self._make_plan()

    def _pin_starts(self) -> None:
        """Let all queries of a source begin at the same place, whenever they do: `on_error` may add one later."""
        if self._starts:
            return
        with _spark_errors():
            # Main is the first to begin: without it, nothing was read, and another start may be declared.
            begun = self.state.incarnation(MAIN) is not None
            starts = {}
            for name, source in self._spec.sources.items():
                data = self.state.start(name) if begun or name in self.state.last_reset.starts else None
                if data is None:
                    data = start_of(self._place.source, source).encode()
                    self.state.write(start_file(name), data)
                starts[name] = self._late_start(name, data).decode() if begun else data.decode()
                if source.ending is not None:
                    self._range_ends[name] = self._range_end(source).decode()
            self._starts, self._ends = starts, self._range_ends
            self._plan = self._make_plan()

    def _range_end(self, source: SourceSpec) -> bytes:
        """Return where the range of a source ends, as the first run has found it."""
        file = f"ending/{source.name}.json"
        data = self.state.read(file)
        if data is None:
            ending = msgspec.structs.replace(source, starting=source.ending)
            data = start_of(self._place.source, ending).encode()
            self.state.write(file, data)
        return data

    def _late_start(self, name: str, start: bytes) -> bytes:
        """Return the first offset for dead letters declared since: earlier deletions are no loss."""
        main = self.state.progress(MAIN, self._plan.order)
        is_late = name in self._lossy() and self.state.incarnation(dead_letters_of(name)) is None
        if not is_late or (main is not None and not main.positions):
            return start
        began = msgspec.json.decode(start, type=SourcePosition)
        return msgspec.json.encode(kept(self._place.source, self._spec.sources[name], began, {}))

    def _learn(self, new: NewSchemaError) -> None:
        """Go on with a schema that records have named since, and if it is the newest of its subject read by it."""
        _log.info("a new schema", pipeline=self._spec.name, source=new.place, id=new.schema_id)
        self._decoding.learn(new)
        self._changes = self._decoding.follow(self._spec.sources.values())
        with self._changes_named(), _spark_errors():
            self._declare()
        self._is_prepared = False

    def _run_queries(self, stopped: threading.Event, reporter: PipelineReporter) -> None:
        with _spark_errors(), self._running(self.queries, reporter) as queries:
            reporter.started([query.name for query in queries])
            self._await(stopped, queries)
            self._raise_failure(queries)

    def _await(self, stopped: threading.Event, queries: list[StreamingQuery]) -> None:
        """Wait until one of the queries has failed, or all have ended, which they do once `stopped`."""
        while all(query.exception() is None for query in queries) and any(
            query.isActive for query in queries
        ):
            if stopped.wait(_POLL_S):
                _stop(queries)

    def _level(self, reporter: PipelineReporter) -> None:
        """Let queries read the same, for the time of a batch: then a source may be decoded in another way."""
        try:
            self._read_the_same(reporter)
        except PipelineError as error:
            _log.warning("a query has read less than another", pipeline=self._spec.name, reason=error)

    def _read_the_same(self, reporter: PipelineReporter, stopped: threading.Event | None = None) -> None:
        """Let queries that are behind read on to where another one of the same source is; raises PipelineError.

        They have the time of a batch for it, or all until `stopped`.
        Of records between them, one that decodes only by the way of the query that has not read it yet would be in
        neither table.
        """
        with _spark_errors():
            behind = self._behind()
            if behind:
                self._plan = self._make_plan()
                with self._running(behind, reporter) as queries:
                    if stopped is None:
                        _wait(queries)
                    else:
                        self._await(stopped, queries)
                    self._raise_failure(queries)

    def _behind(self) -> list[str]:
        """Return the queries that have read less of a source than another one, and set where they have to end."""
        ends: dict[str, SourcePosition] = {}
        behind: dict[str, QueryProgress] = {}
        for query, sources in self._reads.items():
            progress = self.state.progress(query, sources)
            if progress is None:
                return []
            behind[query] = progress
            for name, position in progress.positions:
                ends[name] = merged(max, ends.get(name, position), position)
        self._ends = {name: _text(end) for name, end in ends.items()}
        return [
            query
            for query, progress in behind.items()
            if not progress.committed
            or any(position != ends[name] for name, position in progress.positions)
            or (not progress.positions and any(name in ends for name in self._reads[query]))
        ]

    def _raise_failure(self, queries: list[StreamingQuery]) -> None:
        """Raise PipelineError with what was raised in a batch, else with what else a query ended by, if any did.

        A batch that has met an unknown schema is withdrawn: queries may then be level before it.
        """

        def met_unknown(query: StreamingQuery) -> bool:
            failure = self._failure(query)
            return failure is not None and met_unknown_schema(failure)

        if any(map(met_unknown, queries)):
            # One that is interrupted may have written its batch, and not have met such a record yet.
            _stop(queries)
            for query in filter(met_unknown, queries):
                self.state.withdraw(query.name, self._resumed[query.name])
        for query in queries:
            if (failure := self._failure(query)) is not None:
                self._failed = query.name
                raise failure

    def _failure(self, query: StreamingQuery) -> PipelineError | None:
        failed = query._jsq.exception()  # noqa: SLF001 - Python has only its text, with the stacks
        if not failed.isDefined():
            return None
        error = self._failures.get(query.name) or Py4JJavaError("", failed.get())
        failure = PipelineError(_with_ways_out(root_reason(error), self._spec.name))
        failure.__cause__ = error
        return failure

    @contextmanager
    def _running(self, names: Iterable[str], reporter: PipelineReporter) -> Iterator[list[StreamingQuery]]:
        session = self._place.session
        listener = ProgressListener(reporter, self._failed_attempts)
        self._failures.clear()
        session.streams.addListener(listener)
        queries: list[StreamingQuery] = []
        try:
            queries.extend(
                self._start_main() if name == MAIN else self._start_dead(name, reporter) for name in names
            )
            yield queries
        finally:
            # If Java is gone, its queries are gone too.
            with suppress(*JOB_ERRORS):
                for query in queries:
                    query.stop()
                # Their last events arrive by a thread of its own.
                session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001 - PySpark has no name for it
                session.streams.removeListener(listener)

    @contextmanager
    def _changes_named(self) -> Iterator[None]:
        """Name the schemas that are new in an error: they may be its reason."""
        try:
            yield
        except PipelineError as error:
            if not self._changes:
                raise
            raise PipelineError(f"{error} ({'; '.join(self._changes)})") from error

    def _start_main(self) -> StreamingQuery:
        target, rows = self._target, self._plan.rows
        if isinstance(target, ParquetTarget):
            return self._start(MAIN, rows, target.sink, self._output_mode)

        def write(rows: DataFrame, number: int) -> None:
            if not self._plan.state:
                target.write(rows, self._batch(MAIN, number))
                return
            # State is written as rows are made: also of a batch whose rows the target has already, and once.
            made = rows.persist()
            try:
                made.count()
                target.write(made, self._batch(MAIN, number))
            finally:
                made.unpersist()

        return self._start(MAIN, rows, self._each_batch(MAIN, write), self._output_mode)

    def _start_dead(self, name: str, reporter: PipelineReporter) -> StreamingQuery:
        table, [source] = self._dead, self._reads[name]
        assert table is not None  # noqa: S101 - a source that keeps them has a table for them

        def write(rows: DataFrame, number: int) -> None:
            persisted = rows.persist()
            try:
                if records := persisted.count():
                    table.write(persisted, self._batch(name, number))
                    reporter.dead_letters(records)
            finally:
                persisted.unpersist()

        rows = bad(self._plan.decoded[source], self._spec.sources[source])
        return self._start(name, rows, self._each_batch(name, write), "append")

    def _each_batch(self, query: str, write: Callable[[DataFrame, int], None]) -> _Sink:
        """Return a sink of batches; an exception there is kept as it was, and Java gets one in few words."""

        def kept(rows: DataFrame, number: int) -> None:
            try:
                write(rows, number)
            except Exception as error:  # noqa: BLE001 - it is raised when the query has ended
                self._failures[query] = error
                # Once a query is stopped, Spark matches what has failed by an expression that recurses for each of its
                # characters: the text of a cancelled job, with Java's stacks in it, overflows the thread's own stack.
                raise RuntimeError(_INTERRUPTED) from None

        return lambda writer: writer.foreachBatch(kept)

    def _start(self, name: str, rows: DataFrame, sink: _Sink, mode: str) -> StreamingQuery:
        trigger = self._spec.trigger
        # Without dead letters no batch is written that has a record of an unknown schema.
        self._resumed[name] = self.state.pending(name) if self._lossy() else None
        writer = rows.writeStream.queryName(name).outputMode(mode)
        writer = writer.option("checkpointLocation", self.state.checkpoint(name))
        if trigger.available_now or self._ends:
            return sink(writer.trigger(availableNow=True)).start()
        return sink(writer.trigger(processingTime=f"{round(trigger.seconds * 1000)} milliseconds")).start()

    @property
    def _output_mode(self) -> str:
        if self._spec.target.mode == "merge":
            return "update"
        # Partitions are replaced as a whole, so all of an aggregate is written.
        return "complete" if self._spec.target.mode == "overwrite" and self._plan.aggregates else "append"

    @property
    def _reads(self) -> dict[str, tuple[str, ...]]:
        """The sources that each query reads, in its order."""
        return {MAIN: self._plan.order} | {dead_letters_of(name): (name,) for name in self._lossy()}

    def _lossy(self) -> list[str]:
        return [name for name, source in self._spec.sources.items() if source.has_dead_letters]

    def _dead_schema(self) -> StructType:
        name, frame = next(iter(self._plan.decoded.items()))
        return bad(frame, self._spec.sources[name]).schema

    def _batch(self, query: str, number: int) -> Batch:
        # The id is another one if the checkpoint was removed: its batches begin at 0 again, and are others.
        return Batch(f"korvet-{self._spec.name}-{query}-{self.state.incarnation(query)}", number)

    def _make_plan(self) -> Plan:
        session, source = self._place.session, self._place.source
        decoded = {
            name: decode(
                source_frame(session, source, item, self._starts.get(name), self._ends.get(name)),
                item,
                self._decoding,
            )
            for name, item in self._spec.sources.items()
        }
        return plan(session, self._spec, decoded)

    def _make_target(self) -> Target:
        spec, place = self._spec.target, self._place
        match spec.type:
            case "delta":
                return _delta(place, spec, "target")
            case "parquet":
                begun = self.state.incarnation(MAIN) is not None
                where = location(place.source.lake.path, spec.path or "")
                return ParquetTarget(place.session, spec, where, begun=begun)
        lake = place.source.lake
        once = {
            "exactly.once": "true",
            "staging.path": f"{lake.path}/{PIPELINES}/{self._spec.name}/staging",
            "staging.storage.options": storage_text(lake),
        }
        return TopicTarget(spec, once | dict(place.brokers))

    def _begin(self) -> Begun:
        spec, planned = self._spec, self._plan
        target = spec.target
        where = target.topic or location(self._place.source.lake.path, target.path or "")
        sources = [(name, _read_by(spec.sources[name])) for name in planned.order]
        return Begun(
            sources=sources,
            state=planned.state,
            target=target_fields({"type": target.type, "mode": target.mode, "key": target.key}, where),
            spark=self._place.session.version,
            decoded={
                name: digest(spec.sources[name], planned.decoded[name], self._decoding.pins)
                # Without expectations as versions before had it.
                + "".join(
                    f" {text}={action}"
                    for text, action in spec.sources[name].expect.items()
                    if action != "count"
                )
                for name in self._lossy()
            },
        )


def _text(position: SourcePosition) -> str:
    return msgspec.json.encode(position).decode()


def _with_ways_out(reason: str, name: str) -> str:
    """Return why a query has failed, if records were lost with what a pipeline can do then."""
    remedy = (
        '(on_data_loss = "continue" in its source goes on with what there is, and `korvet lake pipeline reset'
        f" {name}` sets where it goes on)"
    )
    return reason.replace(LOSS_REMEDY, remedy)


def _read_by(spec: SourceSpec) -> str:
    return f"/{spec.pattern}/" if spec.pattern is not None else ",".join(sorted(spec.topics))


def _delta(context: PipelineContext, spec: TargetSpec, section: str) -> DeltaTarget:
    return DeltaTarget(context.session, spec, location(context.source.lake.path, spec.path or ""), section)


def _stop(queries: list[StreamingQuery]) -> None:
    """Stop queries between their batches, unless a batch takes too long."""
    _wait(queries, for_batch=True)
    for query in queries:
        query.stop()


def _wait(queries: list[StreamingQuery], *, for_batch: bool = False) -> None:
    """Wait for the end of queries, or of the batch of each, for the time that a batch may take."""
    pause = threading.Event()
    for _ in range(int(_BATCH_END_S_MAX / _POLL_S)):
        active = [query for query in queries if query.isActive]
        if not any(query.status["isTriggerActive"] or not for_batch for query in active):
            break
        pause.wait(_POLL_S)


@contextmanager
def _spark_errors() -> Iterator[None]:
    try:
        yield
    except JOB_ERRORS as error:
        raise PipelineError(root_reason(error)) from error


def _passes(error: PipelineError) -> bool:
    return any(text in str(error) for text in _PASSING)
