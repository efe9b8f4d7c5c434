"""Kafka's requests read at once, where a server reads them in steps."""

from __future__ import annotations

from typing import Any

from typing_extensions import Buffer

from penstock.kafka.registry import BY_MODULE
from penstock.kafka.wire import schema
from penstock.kafka.wire.decode import decode
from penstock.kafka.wire.fetch_codec import FetchRequest, fetch_steps
from penstock.kafka.wire.produce_codec import ProduceRequest, produce_steps
from penstock.model.steps import at_once


def versions_of(api_name: str) -> range:
    """Return the versions of an API that are served; the name is kio's."""
    api = BY_MODULE[api_name]
    return range(api.versions_min, api.versions_max + 1)


def parse_fetch(body: memoryview, version: int) -> FetchRequest:
    """See `fetch_steps`."""
    return at_once(fetch_steps(body, version))


def parse_produce(body: memoryview, version: int) -> ProduceRequest:
    """See `produce_steps`."""
    return at_once(produce_steps(body, version))


def decode_request(api_name: str, version: int, body: Buffer) -> Any:
    """Decode a request into kio's class of its version, where handlers get that of `taken_steps`.

    Raises:
        MalformedRequestError: the bytes are not such a request.
    """
    return decode(schema._entity_type(api_name, version, "Request"), body)
