"""The bytes of what a group journals: a version byte, then a MessagePack array. Pure."""

from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from penstock.model.errors import CorruptDataError
from penstock.model.malformed import MALFORMED

S = TypeVar("S", bound=Struct)

_encode: Final = msgspec.msgpack.Encoder().encode


class VersionedState(Generic[S]):
    """Encodes and decodes states of one kind and version.

    Args:
        name: the kind's name in errors.
        kind: an `array_like` struct, whose fields are only ever added at the end, with a default.
    """

    def __init__(self, name: str, kind: type[S], *, version: int) -> None:
        self._operation = f"read {name}"
        self._version_byte = bytes([version])
        self._decoder = msgspec.msgpack.Decoder(kind)

    def encode(self, state: S) -> bytes:
        """Return the bytes to journal."""
        return self._version_byte + _encode(state)

    def decode(self, body: bytes, *, subject: str) -> S:
        """Invert `encode`.

        Raises:
            CorruptDataError: an unknown version, or damaged bytes.
        """
        if body[:1] != self._version_byte:
            raise CorruptDataError(
                self._operation,
                subject,
                f"version {body[0] if body else 'missing'}, this release knows"
                f" {self._version_byte[0]}",
                "open it with the release that wrote it, or a later one",
            )
        try:
            return self._decoder.decode(memoryview(body)[1:])
        except MALFORMED as error:
            detail = f"{len(body)} bytes: {error}"
            raise CorruptDataError(self._operation, subject, detail) from error
