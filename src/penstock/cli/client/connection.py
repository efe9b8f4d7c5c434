"""A typed connection to a server makes one request at a time, in a version that both sides speak.

Commands use it for requests that librdkafka doesn't make, and to find out at once whether and why a
server can't be reached. kio's messages of an API and version are imported when the first such
request is made.
"""

import itertools
import socket
import struct
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from penstock.cli.client.notice import notice
from penstock.cli.client.security import ClientSecurity
from penstock.config.addresses import Address
from penstock.kafka.errors import MalformedRequestError
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.wire.schema import decode_response, encode_request, request_types
from penstock.model.errors import CorruptDataError, InvalidRequestError, RetryableError
from penstock.security.listener import Protocol

CLIENT_ID: Final = b"penstock"
RESPONSE_BYTES_MAX: Final = 1 << 30
API_VERSIONS: Final = "api_versions"
_API_VERSIONS_VERSION: Final = 0
"""Every server answers version 0, and later versions add nothing that the commands need."""

SPOKEN: Final[Mapping[str, tuple[int, int]]] = {
    "metadata": (4, 12),
    "list_groups": (0, 5),
    "find_coordinator": (0, 3),
    "leave_group": (3, 5),
    "consumer_group_describe": (0, 1),
    "share_group_describe": (1, 1),
    "streams_group_describe": (0, 0),
    "list_transactions": (0, 2),
    "describe_transactions": (0, 0),
    "describe_producers": (0, 0),
    "write_txn_markers": (1, 2),
    "init_producer_id": (0, 5),
    "describe_acls": (1, 3),
    "create_acls": (1, 3),
    "delete_acls": (1, 3),
    "sasl_handshake": (1, 1),
    "sasl_authenticate": (0, 2),
    "describe_user_scram_credentials": (0, 0),
    "alter_user_scram_credentials": (0, 0),
    "describe_client_quotas": (0, 1),
    "alter_client_quotas": (0, 1),
}
"""The first and last version of each API that the commands' code is written for."""

_HEADER: Final = struct.Struct(">hhih")
_SIZE: Final = struct.Struct(">i")


class Connection:
    """A socket to one server. Not for several threads.

    Args:
        timeout_s: the longest time that connecting, or one answer, may take.
        security: how the client says who it is; None: the listener is one of PLAINTEXT.
        spoken: the first and last version of each API that the caller's code is written for.

    Raises:
        RetryableError: the server can't be reached, or doesn't answer in time.
        InvalidRequestError: it isn't who it says.
        RefusedError: it refuses the client.
    """

    def __init__(
        self,
        address: Address,
        *,
        timeout_s: float,
        security: ClientSecurity | None = None,
        spoken: Mapping[str, tuple[int, int]] = SPOKEN,
    ) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._spoken = spoken
        self._correlation_ids = itertools.count(1)
        with notice(str(address), timeout_s):
            try:
                self._socket = socket.create_connection(address, timeout=timeout_s)
            except OSError as error:
                raise RetryableError(
                    "connect", str(address), _reason(error), "is a server running there?"
                ) from error
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                self._begin(security)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._socket.close()

    @property
    def closed(self) -> bool:
        """Whether `close` or an error has closed the connection."""
        return self._socket.fileno() < 0

    def version(self, api: str) -> int:
        """Return the newest version of an API that both sides speak.

        Raises:
            InvalidRequestError: no version is spoken by both sides.
        """
        first, last = self._spoken[api]
        served_first, served_last = self._served.get(BY_MODULE[api].key, (1, 0))
        if served_last < served_first:
            raise InvalidRequestError(
                "call", BY_MODULE[api].name, f"{self.address} does not serve this API"
            )
        version = min(last, served_last)
        if version < max(first, served_first):
            raise InvalidRequestError(
                "call",
                BY_MODULE[api].name,
                f"{self.address} serves versions {served_first} to {served_last}, "
                f"this command speaks {first} to {last}",
            )
        return version

    def request(self, api: str, make: Callable[[ModuleType], Any], *, wait_s: float = 0.0) -> Any:
        """Send a request and wait for its response entity.

        Args:
            api: kio's name of the API, one of `spoken`.
            make: makes the request's entity from the module with the version's classes.
            wait_s: how long the server may hold the answer back, beyond the timeout.

        Raises:
            RetryableError: the connection broke or the deadline passed.
        """
        version = self.version(api)
        body = encode_request(make(request_types(api, version)))
        return self._decoded(api, version, self.exchange(api, version, body, wait_s=wait_s))

    def exchange(self, api: str, version: int, body: bytes, *, wait_s: float = 0.0) -> memoryview:
        """Send a request's bytes and return the response's bytes, both without their headers.

        Every error closes the connection, and so does Ctrl-C: the answer may still come, and would
        be taken for the answer of the next request.
        """
        row = BY_MODULE[api]
        flexible = version >= row.flexible_from
        correlation_id = next(self._correlation_ids)
        head = _HEADER.pack(row.key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID
        if flexible:
            head += b"\x00"  # no tagged fields (KIP-482)
        try:
            self._socket.settimeout(self._timeout_s + wait_s)
            self._socket.sendall(_SIZE.pack(len(head) + len(body)) + head + body)
            response = self._receive(_SIZE.unpack(self._receive(_SIZE.size))[0])
        except OSError as error:
            self.close()
            raise RetryableError("call", f"{row.name} of {self.address}", _reason(error)) from error
        except BaseException:
            self.close()
            raise
        if _SIZE.unpack_from(response)[0] != correlation_id:
            self.close()
            raise CorruptDataError(
                "call", f"{row.name} of {self.address}", "it answered another request"
            )
        # An ApiVersions response has no tagged fields in its header, whatever its version: its
        # client may not know the version yet (KIP-511).
        start = 5 if flexible and api != API_VERSIONS else 4
        return memoryview(response)[start:]

    def _begin(self, security: ClientSecurity | None) -> None:
        if security is None or security.protocol is Protocol.PLAINTEXT:
            self._served = self._negotiate()
            return
        # Most commands need neither TLS nor SASL.
        from penstock.cli.client import securing

        if security.protocol.has_tls:
            try:
                self._socket = securing.encrypted(self._socket, self.address, security)
            except OSError as error:
                raise RetryableError(
                    "connect", str(self.address), _reason(error), "does this port have TLS?"
                ) from error
        self._served = self._negotiate()
        if security.protocol.has_sasl:
            securing.authenticate(self.request, self.address, security)

    def _negotiate(self) -> dict[int, tuple[int, int]]:
        body = self.exchange(API_VERSIONS, _API_VERSIONS_VERSION, b"")
        response = self._decoded(API_VERSIONS, _API_VERSIONS_VERSION, body)
        return {int(row.api_key): (row.min_version, row.max_version) for row in response.api_keys}

    def _decoded(self, api: str, version: int, body: memoryview) -> Any:
        try:
            return decode_response(api, version, body)
        except MalformedRequestError as error:
            raise CorruptDataError(
                "read answer", f"{BY_MODULE[api].name} of {self.address}", error.detail
            ) from error

    def _receive(self, size: int) -> bytearray:
        if not 0 < size <= RESPONSE_BYTES_MAX:
            raise ConnectionError(f"an answer of {size} bytes, so it is not a Kafka server")
        data = bytearray(size)
        view, position = memoryview(data), 0
        while position < size:
            count = self._socket.recv_into(view[position:])
            if count == 0:
                raise ConnectionError("the server closed the connection")
            position += count
        return data


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return error.strerror or str(error)
