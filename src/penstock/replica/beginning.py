"""The beginning of a restored log: the row before its journal's first one names a snapshot.

A restored state lies at position 1, and its journal begins at 2. The row at 1 isn't an entry: it is
never read as one, nor applied. Table of its bytes, and what an agent does with it:
docs/formats/cluster-journal.md, "A restored journal". Why: docs/decisions/0018.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.model.malformed import MALFORMED
from penstock.ports.journal import Journal, JournalHead
from penstock.replica.archive_format import SnapshotName

RESTORED_POSITION: Final = 1
"""Position of a restored log's state. Not 0: a journal that begins with the first position is
taken to give all of the state, without any snapshot."""

_KIND: Final = 0xFF
"""No version of an entry, of any state machine."""
_VERSION: Final = 1
_DIGEST_HEX: Final = 16
"""Digits of the digest in a snapshot's key."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[str, int, bytes])


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The state that a restored log begins with. `digest`: SHA-256 of the canonical dump."""

    cluster_id: str
    position: int
    digest: bytes

    @property
    def snapshot(self) -> SnapshotName:
        """The snapshot's name in the archive."""
        return SnapshotName(self.position, self.digest.hex()[:_DIGEST_HEX])


def encode_beginning(beginning: Beginning) -> bytes:
    """The row's body."""
    fields = (beginning.cluster_id, beginning.position, beginning.digest)
    return bytes([_KIND, _VERSION]) + _encoder.encode(fields)


def is_beginning(body: bytes) -> bool:
    """Whether a row's body says where the journal begins, and isn't an entry or a seal."""
    return body[:1] == bytes([_KIND])


def decode_beginning(body: bytes, *, position: int) -> Beginning:
    """Parse a body of which `is_beginning` is true.

    Raises:
        InvalidRequestError: it is of a newer release.
        CorruptDataError: it is not what was written.
    """
    if body[1:2] > bytes([_VERSION]):
        raise InvalidRequestError(
            "read where the journal begins",
            f"position {position}",
            f"version {body[1]}, this release knows {_VERSION}",
            "upgrade this agent",
        )
    try:
        cluster_id, found, digest = _decoder.decode(memoryview(body)[2:])
    except MALFORMED as error:
        raise CorruptDataError(
            "read where the journal begins",
            f"position {position}",
            f"{len(body)} bytes: {error}",
        ) from error
    return Beginning(cluster_id=cluster_id, position=found, digest=digest)


async def read_beginning(journal: Journal, head: JournalHead) -> Beginning | None:
    """Read where a journal says that it begins; None: at its first row, or nothing says so any
    more,
    since two later snapshots are archived.

    Raises:
        RetryableError: the journal doesn't answer.
        InvalidRequestError: it is of a newer release.
        CorruptDataError: the row is damaged.
    """
    if head.first != RESTORED_POSITION + 1:
        return None
    row = await journal.row(RESTORED_POSITION)
    if row is None or not is_beginning(row.body):
        return None
    return decode_beginning(row.body, position=row.position)
