"""Checks of decoded values beyond Spark's parsers: missing fields, and values that are no text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType


def listed(problems: Iterable[Column]) -> Column:
    """Return texts that are not NULL as one, NULL if all are."""
    return f.nullif(f.concat_ws(", ", *problems), f.lit(""))


def once(value: Column, of: Callable[[Column], Column]) -> Column:
    """Return a function of a value that is evaluated once, however often the function has it."""
    return f.get(f.transform(f.array(value), of), f.lit(0))


Check: TypeAlias = Callable[[Column, DataType, bool], Column | None]
"""Return whether something is wrong with a place of a value, by its type and whether it may be NULL."""


def is_missing(column: Column, kind: DataType, nullable: bool) -> Column | None:  # noqa: ARG001, FBT001 - a check
    """Return whether a value is NULL that must not be."""
    return None if nullable else column.isNull()


def is_invalid(column: Column, kind: DataType, nullable: bool) -> Column | None:  # noqa: ARG001, FBT001 - a check
    """Return whether a text is not valid UTF-8."""
    return ~f.is_valid_utf8(column) if isinstance(kind, StringType) else None


def checked(value: Column, kind: DataType, check: Check, problem: str) -> Column:
    """Return which fields a check finds; NULL if none."""
    return listed(
        f.when(condition, f.lit(f"{path} {problem}".lstrip()))
        for path, condition in _found(value, kind, check, "", nullable=True)
    )


def _found(
    column: Column, kind: DataType, check: Check, path: str, *, nullable: bool
) -> Iterator[tuple[str, Column]]:
    """Give each place of a value that is checked, and what its check is."""
    condition = check(column, kind, nullable)
    if condition is not None:
        yield path, condition
    match kind:
        case StructType():
            for field in kind:
                at = f"{path}.{field.name}" if path else field.name
                for inner, result in _found(
                    column[field.name], field.dataType, check, at, nullable=field.nullable
                ):
                    yield inner, column.isNotNull() & result
        case ArrayType():
            yield from _of_elements(column, kind.elementType, check, f"{path}[]", nullable=kind.containsNull)
        case MapType():
            yield from _of_elements(f.map_keys(column), kind.keyType, check, f"{path}[]", nullable=True)
            values = f.map_values(column)
            yield from _of_elements(
                values, kind.valueType, check, f"{path}[]", nullable=kind.valueContainsNull
            )


def _of_elements(
    column: Column, kind: DataType, check: Check, path: str, *, nullable: bool
) -> Iterator[tuple[str, Column]]:
    def condition(at: int) -> Callable[[Column], Column]:
        # Spark gives each function a variable of its own for an element.
        return lambda value: list(_found(value, kind, check, path, nullable=nullable))[at][1]

    for at, (inner, _) in enumerate(_found(column, kind, check, path, nullable=nullable)):
        yield inner, f.exists(column, condition(at))
