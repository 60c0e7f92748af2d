"""The file of a pipeline as text: TOML with variables of the environment, checked against structs, and its lines.

Every error begins with the key's place in the file, as `target.mode: `.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

_VARIABLE = re.compile(r"(\$?)\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
"""`${NAME}` or `${NAME:-default}`; another dollar before it makes it text."""
_WITHIN = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_INDEX = re.compile(r"\[[^\]]*\]")


class PlaceError(Exception):
    """A value of the file is wrong; the message begins with its place."""


T = TypeVar("T", bound=msgspec.Struct)


def with_variables(value: Any, environment: Mapping[str, str], place: str = "") -> Any:  # noqa: ANN401 - of TOML
    """Return a value of TOML with the variables in its texts replaced, at any depth; keys stay as they are."""
    match value:
        case str():
            return _VARIABLE.sub(lambda match: _replaced(match, environment, place), value)
        case dict():
            return {
                key: with_variables(inner, environment, f"{place}.{key}" if place else key)
                for key, inner in value.items()
            }
        case list():
            return [with_variables(inner, environment, place) for inner in value]
    return value


def _replaced(match: re.Match[str], environment: Mapping[str, str], place: str) -> str:
    dollar, name, default = match.groups()
    if dollar:
        return match[0][1:]
    # As in a shell: an empty one counts as unset where there is a default.
    text = environment.get(name, "") or default if default is not None else environment.get(name)
    if text is None:
        raise PlaceError(f"{place}: the environment has no variable {name}; ${{{name}:-TEXT}} has a default")
    return text


def convert(given: object, kind: type[T], place: str) -> T:
    """Return the struct of a table of the file."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        within = _WITHIN.search(text)
        inner = _INDEX.sub("", within[1]) if within else ""
        if within and within[1].endswith("[...]"):
            inner = f"{inner}.{_key_of_map(given, kind, inner)}"
        problem = _WITHIN.sub("", text)
        if unknown := _UNKNOWN.fullmatch(problem):
            problem = f"there is no such key; there are {', '.join(_names(_type_at(kind, inner)))}"
            inner = ".".join(filter(None, [inner, unknown[1]]))
        elif problem.startswith("Invalid enum value"):
            values = ", ".join(_literals(_type_at(kind, inner)))
            problem = f"{problem.removeprefix('Invalid enum value ')} is none of {values}"
        problem = problem.replace("Object missing required field", "there is no")
        problem = problem.replace("`object`", "a table").replace("`array`", "a list")
        at = ".".join(filter(None, [place, inner]))
        raise PlaceError(f"{at}: {problem[0].lower()}{problem[1:]}" if at else problem) from error


def _key_of_map(given: Any, kind: Any, path: str) -> str:  # noqa: ANN401 - of TOML, and types
    """Return the key whose value a map may not have: msgspec does not say it."""
    for name in path.split("."):
        given = given[name]
    wanted = _type_at(kind, path)
    for key, value in given.items():
        try:
            msgspec.convert({key: value}, wanted)
        except msgspec.ValidationError:
            return str(key)
    return "*"


def _type_at(kind: Any, path: str) -> Any:  # noqa: ANN401 - types have no type in common
    for name in filter(None, path.split(".")):
        # A map's keys have one type; what is no table has none of its own.
        tables = [part for part in _parts(kind) if _is_table(part)]
        fields = {field.name: field.type for part in tables for field in msgspec.structs.fields(part)}
        kind = fields.get(name, kind)
    return kind


def _parts(kind: Any) -> Iterator[Any]:  # noqa: ANN401 - the same
    """Yield a type, or those that it is made of."""
    yield kind
    for part in get_args(kind) if get_origin(kind) is not Literal else ():
        yield from _parts(part)


def _is_table(kind: Any) -> bool:  # noqa: ANN401 - the same
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _names(kind: Any) -> list[str]:  # noqa: ANN401 - the same
    return [
        field.encode_name
        for part in _parts(kind)
        if _is_table(part)
        for field in msgspec.structs.fields(part)
    ]


def _literals(kind: Any) -> list[str]:  # noqa: ANN401 - the same
    return [repr(value) for part in _parts(kind) if get_origin(part) is Literal for value in get_args(part)]


def line_of(text: str, place: str) -> int | None:
    """Return the line of a key, or else of the table that it belongs to; None if that is not in the file."""
    path = place.split(".")
    while path:
        if (line := _line_of(text, path)) is not None:
            return line
        path.pop()
    return None


def _line_of(text: str, path: list[str]) -> int | None:
    lines = text.splitlines(keepends=True)
    header, begin = "", 0
    for end in range(1, len(lines) + 1):
        statement = "".join(lines[begin:end])
        try:
            parsed = tomllib.loads(header + statement)
        except tomllib.TOMLDecodeError:
            # It goes on in the next line.
            continue
        if _holds(parsed, path):
            return begin + 1
        if statement.lstrip().startswith("["):
            header = statement
        begin = end
    return None


def _holds(table: object, path: list[str]) -> bool:
    """Return whether a table has a key at a path, whose names may have dots."""
    if not path:
        return True
    if not isinstance(table, dict):
        return False
    names = (".".join(path[:count]) for count in range(1, len(path) + 1))
    return any(name in table and _holds(table[name], path[count:]) for count, name in enumerate(names, 1))
