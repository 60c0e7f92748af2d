"""What records are expected to be: conditions in SQL over the columns of a source, and what becomes of other records.

A condition that is NULL is met, for example for a tombstone: SQL's CHECK has the same rule. Records that do not decode
have another reason to be dead letters, and are not looked at.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from korvet.spark.decoding import ERROR
from korvet.spark.pipelines.checks import listed
from korvet.spark.pipelines.spec import UNMET, PipelineError, SourceSpec
from korvet.spark.session import JOB_ERRORS, root_reason


def dead_reason(spec: SourceSpec) -> Column:
    """Return why a record goes to the table of dead letters; NULL if it does not."""
    unmet = _unmet(spec, "dead_letters")
    return f.coalesce(f.col(ERROR), unmet) if spec.on_error == "dead_letters" else unmet


def fatal_reason(spec: SourceSpec) -> Column:
    """Return why a record ends the query, with its place; NULL if it does not."""
    place = f.concat("topic", f.lit("-"), "partition", f.lit("@"), "offset", f.lit(": "))
    unmet = f.concat(place, _unmet(spec, "fail"))
    if spec.on_error == "dead_letters":
        return unmet
    return f.coalesce(f.concat(f.lit("cannot decode "), place, ERROR), unmet)


def _unmet(spec: SourceSpec, action: str) -> Column:
    """Return the conditions with this action that a record does not meet; NULL if it meets all."""
    problems = [
        f.when(_fails(text), f.lit(f"expected {text}"))
        for text, wanted in spec.expect.items()
        if wanted == action
    ]
    return listed(problems) if problems else f.lit(None).cast("string")


def _fails(text: str) -> Column:
    return f.col(ERROR).isNull() & ~f.expr(text)


def counted(decoded: DataFrame, spec: SourceSpec) -> DataFrame:
    """Return a source whose batches have as a metric how many records fail each condition; raises PipelineError."""
    for text in spec.expect:
        try:
            decoded.select(_fails(text))
        except JOB_ERRORS as error:
            raise PipelineError(f"sources.{spec.name}.expect: {text}: {root_reason(error)}") from error
    counts = [f.count_if(_fails(text)).alias(text) for text in spec.expect]
    return decoded.observe(f"{UNMET}{spec.name}", *counts) if counts else decoded
