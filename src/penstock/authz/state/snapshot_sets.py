"""A set of snapshots: which snapshots of a shard and its environments belong together. Pure.

docs/formats/authz.md has the tables.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

import msgspec
from crc32c import crc32c

from penstock.model.errors import CorruptDataError
from penstock.replica.archive_format import SnapshotName
from penstock.replica.marks import RowMark

SETS_PREFIX: Final = "sets/"
_VERSION: Final = 1
_CRC_BYTES: Final = 4
_KEY: Final = re.compile(r"sets/(\d{20})-([0-9a-f]{16})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class SetName:
    """A set's key, parsed: the shard's snapshot."""

    position: int
    digest_hex: str

    @property
    def key(self) -> str:
        """Under the service's prefix."""
        return f"{SETS_PREFIX}{self.position:020d}-{self.digest_hex}"

    @classmethod
    def parse(cls, key: str) -> Self | None:
        """Parse a key; None: it is another object's."""
        found = _KEY.fullmatch(key)
        return None if found is None else cls(int(found[1]), found[2])


class SnapshotSet(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The content of a set's object.

    Args:
        time_ms: journal time of the shard's snapshot.
        shard: position and first digits of the digest of its snapshot.
        mark: position, stamp and CRC-32C of a row that was applied when all of them were taken.
        environments: name, position and digest of each.
    """

    cluster_id: str
    time_ms: int
    shard: tuple[int, str]
    mark: tuple[int, int, int]
    environments: list[tuple[str, int, str]]

    @property
    def name(self) -> SetName:
        """The set's key."""
        return SetName(*self.shard)

    @property
    def shard_snapshot(self) -> SnapshotName:
        """The shard's snapshot."""
        return SnapshotName(*self.shard)

    @property
    def row(self) -> RowMark:
        """The mark, as a row's."""
        return RowMark(*self.mark)

    @property
    def snapshots(self) -> dict[str, SnapshotName]:
        """The environments' snapshots, by name."""
        return {name: SnapshotName(at, digest) for name, at, digest in self.environments}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SnapshotSet)


def encode(found: SnapshotSet) -> bytes:
    """Give the bytes of a set's object."""
    body = bytes([_VERSION]) + _encoder.encode(found)
    return body + crc32c(body).to_bytes(_CRC_BYTES, "big")


def decode(body: bytes, *, key: str) -> SnapshotSet:
    """Read a set. Raises: CorruptDataError: it isn't what was written, or a newer release's."""
    content, crc = body[:-_CRC_BYTES], body[-_CRC_BYTES:]
    if crc32c(content).to_bytes(_CRC_BYTES, "big") != crc:
        raise CorruptDataError("read set of snapshots", key, "its CRC-32C differs")
    if content[:1] != bytes([_VERSION]):
        detail = f"version {content[0] if content else None}, this release knows {_VERSION}"
        raise CorruptDataError("read set of snapshots", key, detail)
    try:
        found = _decoder.decode(memoryview(content)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptDataError("read set of snapshots", key, str(error)) from error
    if found.name.key != key:
        raise CorruptDataError("read set of snapshots", key, f"it is {found.name.key}")
    return found
