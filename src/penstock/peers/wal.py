"""Bytes of another agent's WAL, asked of that agent."""

from collections.abc import Callable
from typing import Final

from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError, RetryableError
from penstock.peers.codec import FrameKind, WalRange, encode_wal
from penstock.peers.receive import Frame
from penstock.peers.zone import Calls

WAL_PATH: Final = "/peer/v1/wal"


class PeerWal:
    """Implements `penstock.log.fetch.remote_wal.RemoteWal`. Event loop only.

    Args:
        address_of: HOST:PORT of a live agent's HTTP port, by its id; None: it is not there.
    """

    def __init__(self, calls: Calls, *, address_of: Callable[[int], str | None]) -> None:
        self._calls = calls
        self._address_of = address_of

    async def read(
        self, agent: int, wal_key: int, generation: int, position: int, length: int
    ) -> Buffer:
        """Bytes of a run.

        Raises:
            RetryableError: the owner is away, or the run has moved to a segment.
            CorruptDataError: the owner says that the bytes are damaged.
        """
        subject = f"WAL {wal_key} generation {generation} at byte {position} of agent {agent}"
        address = self._address_of(agent)
        if address is None:
            raise RetryableError("read WAL", subject, "its owner is away")
        frames: list[Frame] = []
        await self._calls.call(
            address,
            WAL_PATH,
            encode_wal(WalRange(wal_key, generation, position, length)),
            on_frame=frames.append,
            payload_bytes_max=[length],
        )
        for frame in frames:
            if frame.kind == FrameKind.DATA and len(frame.payload) == length:
                return frame.payload
            if frame.kind == FrameKind.MOVED:
                raise RetryableError("read WAL", subject, "recycled", "look the run up again")
            if frame.kind == FrameKind.DAMAGED:
                raise CorruptDataError("read WAL", subject, _text(frame))
            if frame.kind == FrameKind.REFUSED:
                raise RetryableError("read WAL", subject, _text(frame))
        raise RetryableError("read WAL", subject, "its owner gave no answer")


def _text(frame: Frame) -> str:
    return bytes(frame.payload).decode("utf-8", "replace")
