"""The list of messages against the directory that holds them."""

from __future__ import annotations

import importlib
import pkgutil
import re

from korvet.protocol import messages
from korvet.protocol.compile import compile_served
from korvet.protocol.messages import all_messages
from korvet.protocol.messages.produce import ProduceRequest
from korvet.protocol.schema import Message


def declared() -> dict[str, list[type[Message]]]:
    """Return the messages that each file of the directory declares."""
    result: dict[str, list[type[Message]]] = {}
    for module in pkgutil.iter_modules(messages.__path__):
        held = vars(importlib.import_module(f"{messages.__name__}.{module.name}")).values()
        result[module.name] = [
            item
            for item in held
            if isinstance(item, type) and issubclass(item, Message) and item.__module__ != Message.__module__
        ]
    return result


def test_the_list_holds_every_message_of_the_directory_once() -> None:
    assert sorted(all_messages(), key=lambda cls: cls.__name__) == sorted(
        (cls for held in declared().values() for cls in held), key=lambda cls: cls.__name__
    )


def test_each_file_holds_one_request_and_its_response_and_bears_their_name() -> None:
    for name, held in declared().items():
        request, response = held
        assert request.api is response.api
        api = request.__name__.removesuffix("Request")
        assert response.__name__ == f"{api}Response"
        assert name == re.sub(r"(?<!^)(?=[A-Z])", "_", api).lower()


def test_each_file_opens_with_key_versions_and_flexible_version() -> None:
    for name, (request, _) in declared().items():
        api = request.api
        flexible = "none flexible" if api.flexible is None else f"flexible from {api.flexible}"
        head = f"(key {api.key}), versions {api.versions[0]}-{api.versions[1]}, {flexible}."
        assert head in str(importlib.import_module(f"{messages.__name__}.{name}").__doc__)


def test_no_two_apis_share_a_key() -> None:
    keys = [cls.api.key for cls in all_messages() if cls.is_request()]
    assert len(keys) == len(set(keys))


def test_every_message_compiles_in_every_version_served() -> None:
    versions = sum(cls.api.versions[1] - cls.api.versions[0] + 1 for cls in all_messages())
    assert compile_served(all_messages()) == versions


def test_produce_is_advertised_from_0_but_served_from_3() -> None:
    assert ProduceRequest.api.advertised == (0, 13)
    assert ProduceRequest.api.versions == (3, 13)
    for cls in all_messages():
        if cls.api.key != ProduceRequest.api.key:
            assert cls.api.advertised == cls.api.versions
