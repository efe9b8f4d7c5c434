"""Values and keys of schemas, and tables of them."""

from __future__ import annotations

import io
from typing import Any

import fastavro

from support.api_server import ApiServer
from support.registry import Registry
from support.tables import Lake, follow, records_of


def avro(schema_id: int, schema: Any, *values: Any) -> list[bytes]:
    parsed = fastavro.parse_schema(schema)
    found = []
    for value in values:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, value)
        found.append(wire(schema_id, stream.getvalue()))
    return found


def wire(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "Flight",
        "fields": [{"name": name, "type": kind} for name, kind in fields],
    }


def typed(api: ApiServer, lake: Lake, topic: str, registry: Registry, **changes: Any) -> Any:
    return follow(api, lake, topic, schema="registry", registry=registry.url, **changes)


def reasons(api: ApiServer, topic: str) -> list[str]:
    return [
        dict(record.headers)["penstock.reason"].decode()  # type: ignore[union-attr]
        for record in records_of(api, f"{topic}.dlq")
    ]
