"""Transactional ids that somebody has damaged: every script names what is wrong and has written nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lua.support import refused
from tests.lua.transaction.support import KEY, PARTITION, Transaction

BY = (b"100", 0)
SCRIPTS: dict[str, Callable[[Transaction], object]] = {
    "init": lambda transaction: transaction.init(),
    "add": lambda transaction: transaction.add(BY, PARTITION),
    "verify": lambda transaction: transaction.add(BY, PARTITION, mode="verify"),
    "end": lambda transaction: transaction.end(BY, "commit"),
    "complete": lambda transaction: transaction.complete(5),
    "expire": lambda transaction: transaction.expire(),
}
NUMBERS = ("epoch", "last_epoch", "timeout_ms", "number", "started", "changed")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_field_that_is_no_number_or_missing(transaction: Transaction, script: str) -> None:
    for field in NUMBERS:
        for content in ("", "garbage", "nan", "1.5", "0x10", "9" * 20, None):
            transaction.client.flushall()
            transaction.opened(transaction.begin())
            if content is None:
                transaction.client.hdel(KEY, field)
            else:
                transaction.set(**{field: content})
            with refused(transaction.client, f"KAFKA_STORAGE_ERROR {KEY}: the field {field} is no number"):
                SCRIPTS[script](transaction)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("field", ["state", "producer_id", "last_producer_id", "next_producer_id"])
def test_a_field_that_is_missing(transaction: Transaction, field: str, script: str) -> None:
    transaction.opened(transaction.begin())
    transaction.client.hdel(KEY, field)
    with refused(transaction.client, f"KAFKA_STORAGE_ERROR {KEY}: .* missing"):
        SCRIPTS[script](transaction)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_state_that_is_none(transaction: Transaction, script: str) -> None:
    transaction.begin()
    transaction.set(state="Dead")
    with refused(transaction.client, f"KAFKA_STORAGE_ERROR {KEY}: there is no state Dead"):
        SCRIPTS[script](transaction)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_key_of_another_type(transaction: Transaction, script: str) -> None:
    transaction.client.rpush(KEY, "of somebody else")
    with refused(transaction.client, f"KAFKA_STORAGE_ERROR {KEY}: WRONGTYPE"):
        SCRIPTS[script](transaction)
