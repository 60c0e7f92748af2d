"""Messages against the schemas of Apache Kafka that kafka-python carries; tests/jvm/kafka_tools has all of them."""

from __future__ import annotations

from importlib.resources import files

import pytest
from kafka.protocol.schemas import load_json

from korvet.protocol.messages import all_messages
from korvet.protocol.schema import Message, Part, fields
from tests.protocol.samples import EVERY_MESSAGE, sample, versions
from tests.protocol.upstream import check

_CARRIED = {path.name for path in files("kafka.protocol.schemas.resources").iterdir()}
CARRIED = [cls for cls in all_messages() if f"{cls.__name__}.json" in _CARRIED]


@pytest.mark.parametrize("cls", CARRIED, ids=lambda cls: cls.__name__)
def test_a_message_is_as_apache_kafka_has_it(cls: type[Message]) -> None:
    check(cls, load_json(cls.__name__))


def test_most_messages_are_carried() -> None:
    assert len(CARRIED) == len(all_messages()) - 30


@EVERY_MESSAGE
def test_the_compared_bytes_carry_no_default(cls: type[Message]) -> None:
    def check(part: Part, version: int) -> None:
        for row in fields(type(part)):
            if not row.present(version):
                continue
            value = getattr(part, row.name)
            assert value != row.default or row.required, (row.name, version)
            held = value if isinstance(value, list) else [value]
            assert held
            for item in held:
                if isinstance(item, Part):
                    check(item, version)

    for version in versions(cls):
        check(sample(cls, version), version)
