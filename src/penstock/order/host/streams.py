"""Messages over a stream, and where the socket lies."""

import asyncio
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

from penstock.model.errors import ConflictError, CorruptDataError
from penstock.order.host.messages import LENGTH_BYTES, MESSAGE_BYTES_MAX

SOCKET_NAME: Final = "order.sock"
_PATH_BYTES_MAX: Final = 100
"""sun_path holds 104 bytes on macOS and 108 on Linux, with the final 0."""


def socket_path(data: Path) -> Path:
    """The socket of the writer of a data directory."""
    path = data.absolute() / SOCKET_NAME
    if len(str(path).encode()) <= _PATH_BYTES_MAX:
        return path
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:24]
    return Path(tempfile.gettempdir()) / f"penstock-{digest}.sock"


def check_own(path: Path) -> None:
    """Refuse a socket that another user made: in a folder for all, anybody can be first.

    Raises:
        ConflictError: it is another's.
        OSError: there is none.
    """
    owner = path.stat().st_uid
    if owner != os.geteuid():
        raise ConflictError(
            "connect", str(path), f"user {owner} made it, not {os.geteuid()}", "remove it"
        )


async def read_message(reader: asyncio.StreamReader) -> bytes | None:
    """The next message's body; None: the other side is gone.

    Raises:
        CorruptDataError: its length is out of range.
    """
    try:
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
        if length > MESSAGE_BYTES_MAX:
            raise CorruptDataError(
                "read message", "worker socket", f"{length} bytes, {MESSAGE_BYTES_MAX} may be"
            )
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError, OSError):
        return None


def send(writer: asyncio.StreamWriter, message: bytes) -> bool:
    """Write a message; False: the connection is gone, and it will never be read.

    uvloop's transports raise where asyncio's say nothing.
    """
    if writer.transport.is_closing():
        return False
    try:
        writer.write(message)
    except (RuntimeError, OSError):
        return False
    return True
