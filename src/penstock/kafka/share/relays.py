"""Connections by which an agent asks the owners of share groups for its clients: one for each
session. `penstock.kafka.share.relay` says when."""

import asyncio
import struct
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from penstock.groups.share.sessions import Key
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.nodes import Node
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.wire.schema import decode_response, encode_request, request_types
from penstock.model.errors import RetryableError

if TYPE_CHECKING:
    from penstock.kafka.context import RequestContext

CLIENT_ID_PREFIX: Final = "penstock-share-relay-"
CONNECT_TIMEOUT_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 5.0
"""How long an answer may take beyond the time that the request may wait for records."""
ANSWER_BYTES_MAX: Final = 64 << 20
_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhih")
_HEADER_BYTES: Final = 5
"""Correlation id and no tagged fields."""


class Relay:
    """One session at the owner. `epoch`: of its next request; 0: it is to be opened."""

    def __init__(self, node: Node, client_id: str) -> None:
        self.node = node
        self.epoch = 0
        self._client_id = client_id.encode()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._count = 0

    async def call(
        self, api: str, version: int, make: Callable[[ModuleType], Any], *, wait_s: float
    ) -> Any:
        """Make one request, and return its answer.

        Raises:
            RetryableError: the owner is away, or doesn't answer in time.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S + wait_s + ANSWER_TIMEOUT_S):
                request = encode_request(make(request_types(api, version)))
                body = await self._exchange(api, version, request)
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            address = f"{self.node.host}:{self.node.port}"
            raise RetryableError("relay", address, str(error) or "no answer in time") from error
        except BaseException:
            self.close()
            raise
        return decode_response(api, version, body)

    def close(self) -> None:
        """End the connection, and with it the owner's session."""
        self.epoch = 0
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _exchange(self, api: str, version: int, body: bytes) -> memoryview:
        if self._streams is None:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                self._streams = await asyncio.open_connection(self.node.host, self.node.port)
        reader, writer = self._streams
        self._count += 1
        key = BY_MODULE[api].key
        head = _HEADER.pack(key, version, self._count, len(self._client_id))
        frame = head + self._client_id + b"\0" + body
        writer.write(_SIZE.pack(len(frame)) + frame)
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        if not _HEADER_BYTES <= size <= ANSWER_BYTES_MAX:
            raise EOFError(f"an answer of {size} bytes")
        answer = memoryview(await reader.readexactly(size))
        return answer[_HEADER_BYTES:]


class ShareRelays:
    """The relays of one connection, by session."""

    def __init__(self, connection: ConnectionState, client_id: str) -> None:
        self._client_id = client_id
        self._relays: dict[Key, Relay] = {}
        connection.watch_end("share relays", self.left)

    def find(self, key: Key, node: Node | None) -> Relay | None:
        """Return the relay of a session, to the agent that owns the group now.

        Args:
            node: None: the one that there is.
        """
        found = self._relays.get(key)
        if node is None or (found is not None and found.node == node):
            return found
        if found is not None:
            found.close()
        made = self._relays[key] = Relay(node, self._client_id)
        return made

    def end(self, key: Key) -> None:
        """A session has ended."""
        found = self._relays.pop(key, None)
        if found is not None:
            found.close()

    def left(self, _: ConnectionState) -> None:
        """The connection has ended, and its sessions with it."""
        for relay in self._relays.values():
            relay.close()
        self._relays.clear()


def relays_of(context: "RequestContext") -> ShareRelays:
    """The relays of a request's connection."""
    connection = context.connection
    found = connection.share_relays
    if not isinstance(found, ShareRelays):
        found = ShareRelays(connection, f"{CLIENT_ID_PREFIX}{context.broker.node_id}")
        connection.share_relays = found
    return found
