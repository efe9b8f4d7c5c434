"""A broker over TCP, of which requests of any API and version are asked; each has a connection of
its own, so that none waits for another one's answer."""

from __future__ import annotations

import asyncio
import struct
from io import BytesIO
from typing import Any

from kio.serial import entity_reader, entity_writer

from penstock.kafka.registry import BY_MODULE
from penstock.kafka.wire import schema

CLIENT_ID = b"client"


class WireFace:
    """See the module.

    Args:
        user: who each connection authenticates as by SASL's PLAIN, with the user's name as the
            password; None: not at all.
    """

    def __init__(self, host: str, port: int, user: str | None = None) -> None:
        self._host = host
        self._port = port
        self._user = user

    async def call(self, api: str, version: int, **fields: Any) -> Any:
        """Send one request; its answer."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            if self._user is not None:
                await self._authenticate(reader, writer, self._user)
            return await _exchange(reader, writer, api, version, **fields)
        finally:
            writer.close()
            await writer.wait_closed()

    async def _authenticate(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, user: str
    ) -> None:
        for api, fields in (
            ("sasl_handshake", {"mechanism": "PLAIN"}),
            ("sasl_authenticate", {"auth_bytes": f"\0{user}\0{user}".encode()}),
        ):
            answer = await _exchange(reader, writer, api, 1, **fields)
            assert not answer.error_code.value, answer

    def part(self, api: str, version: int, kind: str, /, **fields: Any) -> Any:
        """A nested entity of a request."""
        return schema.build(getattr(schema.request_types(api, version), kind), **fields)


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    api: str,
    version: int,
    **fields: Any,
) -> Any:
    entry = BY_MODULE[api]
    types = schema.request_types(api, version)
    request_type = getattr(types, f"{entry.name}Request")
    body = BytesIO()
    entity_writer(request_type)(body, schema.build(request_type, **fields))
    head = struct.pack(">hhih", entry.key, version, 1, len(CLIENT_ID)) + CLIENT_ID
    is_flexible = request_type.__flexible__
    sent = head + (b"\0" if is_flexible else b"") + body.getvalue()
    writer.write(struct.pack(">i", len(sent)) + sent)
    await writer.drain()
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    answer = await reader.readexactly(size)
    response_type = getattr(schema.response_types(api, version), f"{entry.name}Response")
    # The answer to ApiVersions has the older header in each version.
    has_tags = is_flexible and api != "api_versions"
    response, _ = entity_reader(response_type)(answer, 5 if has_tags else 4)
    return response
