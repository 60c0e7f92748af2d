"""What becomes of the configs of a topic or a broker that are set, deleted, appended to or subtracted from (KIP-339).

Knows the rules; nothing of Redis, of where configs are kept, or of messages. Values are texts, as clients give them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

import msgspec

from korvet.config import Layers, rows
from korvet.config.layers import CLUSTER_WIDE, THIS_BROKER, checked, dynamic_rows, lay
from korvet.domain import topic_config
from korvet.domain.config_entries import chain, listed
from korvet.domain.topic_config_table import DEFINITIONS, ConfigType
from korvet.errors import ConfigError, ErrorCode, KafkaError

_ARCHIVED = "remote.storage.enable"

Held = Mapping[str, str]
"""What is set already, by name."""


class Operation(IntEnum):
    """What is done to a config (IncrementalAlterConfigs, `config_operation`)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(msgspec.Struct, frozen=True):
    """One config, what is to be done to it, and with which value; DELETE needs none."""

    name: str
    operation: Operation
    value: str | None


def check_form(changes: Sequence[Change]) -> None:
    """Raise KafkaError INVALID_REQUEST where a config is named twice, or has no value where it needs one."""
    times = Counter(change.name for change in changes)
    if twice := sorted(name for name, count in times.items() if count > 1):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Named more than once: {', '.join(twice)}")
    null = [each.name for each in changes if each.value is None and each.operation is not Operation.DELETE]
    if null:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for: {', '.join(null)}")


def changed_topic(
    held: Held, changes: Sequence[Change], layers: Layers, *, anew: bool = False
) -> dict[str, str]:
    """Return the configs of a topic after `changes`; raises KafkaError INVALID_CONFIG where one cannot be.

    `anew`: only what `changes` name is set then, and what is fixed when a topic is created. What is appended to and
    subtracted from is the value that counts, be it the topic's own or not.
    """
    fixed = topic_config.FIXED_AT_CREATION
    result = {name: value for name, value in held.items() if name in fixed or not anew}
    inherited = topic_config.values({}, layers.settings)
    for change in changes:
        name = change.name
        definition = DEFINITIONS.get(name)
        if definition is None and not (change.operation is Operation.DELETE and name in held):
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if change.operation is Operation.DELETE:
            _keep_fixed(name, held, None)
            result.pop(name, None)
            continue
        value = change.value
        if change.operation is not Operation.SET:
            if definition is None or definition.type is not ConfigType.LIST:
                raise KafkaError(ErrorCode.INVALID_CONFIG, _no_list(change))
            value = _combined(held.get(name, inherited.get(name, "")), change)
        value = topic_config.check_override(name, value)
        _keep_fixed(name, held, value)
        result[name] = value
    if held.get(_ARCHIVED) == "true" and result.get(_ARCHIVED) != "true":
        message = f"{_ARCHIVED} cannot be switched off: consumers would lose what only the archive holds"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    topic_config.check_together(result, layers.settings)
    return result


def _keep_fixed(name: str, held: Held, value: str | None) -> None:
    if name in topic_config.FIXED_AT_CREATION and value != held.get(name):
        message = f"{name} is fixed when a topic is created; that of this topic is {held.get(name)}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _no_list(change: Change) -> str:
    return f"Can't {change.operation.name} to key {change.name} because its type is not LIST."


def _combined(now: str, change: Change) -> str:
    """Return a list with parts appended that are not in it, or without those that are."""
    parts, given = listed(now), listed(change.value or "")
    if change.operation is Operation.APPEND:
        parts += [part for part in given if part not in parts]
    else:
        parts = [part for part in parts if part not in given]
    return ",".join(parts)


class Scope(msgspec.Struct, frozen=True):
    """Whose dynamic settings are changed: all brokers' (`layer` CLUSTER_WIDE) or those of the one that is asked.

    `below` is what counts where nothing is set in that layer; `over` lays a row there, and raises ConfigError where it
    does not go together with what there is.
    """

    layer: str
    below: Layers
    over: Callable[[Held], object]


def all_brokers(layers: Layers) -> Scope:
    """Return the scope of all brokers, as the one that is asked sees it."""

    def over(row: Held) -> None:
        lay(layers.static, row, {})
        lay(layers.static, row, layers.broker)

    return Scope(CLUSTER_WIDE, Layers(settings=layers.static, static=layers.static), over)


def one_broker(layers: Layers) -> Scope:
    """Return the scope of the broker that is asked."""
    return Scope(
        THIS_BROKER,
        msgspec.structs.replace(layers, broker={}),
        lambda row: lay(layers.static, layers.cluster, row),
    )


def changed_broker(
    held: Held, changes: Sequence[Change], scope: Scope, *, anew: bool = False
) -> dict[str, str]:
    """Return the dynamic settings after `changes`; `anew`: only what they name is set then.

    Raises KafkaError: INVALID_CONFIG for a name that is no setting, and where something is appended to or subtracted
    from what is no list; INVALID_REQUEST, which is Kafka's answer here, for a setting that cannot be altered while
    brokers run, and for a value that cannot be.
    """
    result = {} if anew else dict(held)
    _check_names([each.name for each in changes], held)
    for change in changes:
        if change.operation is Operation.DELETE:
            result.pop(change.name, None)
        else:
            result[change.name] = _new_setting(held, change, scope)
    try:
        scope.over({name: text for name, text in result.items() if name in dynamic_rows()})
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    return result


def _new_setting(held: Held, change: Change, scope: Scope) -> str:
    row, value = dynamic_rows()[change.name], change.value or ""
    if change.operation is not Operation.SET:
        if not row.is_list:
            raise KafkaError(ErrorCode.INVALID_CONFIG, _no_list(change))
        value = _combined(held.get(row.name, chain(row, scope.below)[0].value or ""), change)
    topic_config.check_size(row.name, value)
    try:
        return checked(row.name, value, scope.layer)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error


def _check_names(names: Sequence[str], held: Held) -> None:
    known = {row.name for row in rows()} | dynamic_rows().keys()
    for name in names:
        # What another version of Korvet has set may be deleted.
        if name not in known and name not in held:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {name}")
    fixed = [name for name in names if name in known and name not in dynamic_rows()]
    if fixed:
        message = f"Cannot update these configs dynamically: {', '.join(fixed)}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
