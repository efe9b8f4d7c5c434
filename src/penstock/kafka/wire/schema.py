"""kio's message types by API name and version, imported on first use, and their bytes.

All of kio takes 0.45 s to import, so nothing here imports it at module level; a server that only
ever answers ApiVersions, Metadata, Produce and Fetch never loads it.

`types = response_types("list_offsets", version)` gives a module whose classes are the version's
messages: `build(types.ListOffsetsResponse, topics=...)`.
"""

import dataclasses
import importlib
import sys
from datetime import timedelta
from functools import cache
from types import ModuleType
from typing import Any, Final

from typing_extensions import Buffer

from penstock.kafka.registry import BY_MODULE
from penstock.kafka.wire.decode import decode, decode_in_steps
from penstock.kafka.wire.encode import Entity, encode_in_steps
from penstock.model.steps import Steps, at_once
from penstock.system.turns import Turns

NO_TIME: Final = timedelta(0)


def load() -> None:
    """Import what all of kio's messages share; what takes time at the first request otherwise.

    Wherever hypothesis is installed, kio would import it and register strategies: seconds on the
    event loop, in which an agent of a cluster is taken for dead, for tests that aren't run here.
    """
    if "kio" in sys.modules:
        return
    hidden = "hypothesis" not in sys.modules
    if hidden:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.serial  # noqa: F401
    finally:
        if hidden:
            del sys.modules["hypothesis"]


@cache
def request_types(api_name: str, version: int) -> ModuleType:
    """The module with the request's classes, for example ("list_offsets", 11)."""
    load()
    return importlib.import_module(f"kio.schema.{api_name}.v{version}.request")


@cache
def response_types(api_name: str, version: int) -> ModuleType:
    """The module with the response's classes."""
    load()
    return importlib.import_module(f"kio.schema.{api_name}.v{version}.response")


def build(entity_type: type[Entity], /, **fields: object) -> Entity:
    """Make an entity, leaving out the fields that its version does not have.

    `throttle_time` is zero where the version wants one: `penstock.kafka.wire.throttle` writes it.

    Args:
        entity_type: a class of `response_types` or `request_types`.
        fields: the fields of the newest version.
    """
    names = _field_names(entity_type)
    if "throttle_time" in names:
        fields.setdefault("throttle_time", NO_TIME)
    return entity_type(**{name: value for name, value in fields.items() if name in names})


@cache
def _field_names(entity_type: type) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(entity_type))


def decode_response(api_name: str, version: int, body: Buffer) -> Any:
    """The response's entity; for tests and the command line, which are clients.

    Raises:
        MalformedRequestError: the bytes are not such a response.
    """
    return decode(_entity_type(api_name, version, "Response"), body)


@cache
def _entity_type(api_name: str, version: int, kind: str) -> type:
    types = request_types if kind == "Request" else response_types
    module = types(api_name, version)
    # kio spells an abbreviation in its class names as Kafka does, so the name is looked up.
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and getattr(value, "__type__", None) is not None
    ]
    roots = [value for value in found if value.__type__.name == kind.lower()]  # type: ignore[attr-defined]
    assert len(roots) == 1, (api_name, version, roots)
    return roots[0]


def taken_steps(api_name: str, version: int, body: Buffer) -> Steps[Entity]:
    """Decode a request into the class that its handler takes: see `registry.Api.taken_version`.

    Raises:
        MalformedRequestError: the bytes are not such a request.
    """
    sent = _entity_type(api_name, version, "Request")
    taken = _entity_type(api_name, BY_MODULE[api_name].taken_version(version), "Request")
    return decode_in_steps(sent, body, taken)


async def decode_in_turns(turns: Turns, api_name: str, version: int, body: Buffer) -> Entity:
    """Decode for a handler; other work of the event loop may run during a long request."""
    return await turns.run(taken_steps(api_name, version, body))


def encode_response(entity: Entity) -> bytes:
    """The bytes of a response (or any kio entity), without size and header."""
    return bytes(at_once(encode_in_steps(entity)))


async def encode_in_turns(turns: Turns, entity: Entity) -> bytearray:
    """Encode as `encode_response` does; other work of the event loop may run during a long one."""
    return await turns.run(encode_in_steps(entity))


encode_request = encode_response
"""The bytes of a request; for tests and the command line."""
