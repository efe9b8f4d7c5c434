"""A backup's manifest is the file `manifest.json`, which lists all of its objects. Pure.

docs/formats/backup.md has the table of its fields.
"""

from typing import Final

import msgspec
from crc32c import crc32c

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.model.malformed import MALFORMED

MANIFEST: Final = "manifest.json"
METADATA: Final = "metadata.sqlite"
"""The key of the state in a backup of version 1."""
INCOMPLETE: Final = "incomplete"
BACKUP_VERSION: Final = 2
_KNOWN_VERSIONS: Final = (1, BACKUP_VERSION)


class BackupObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object of a backup. `crc32c`: CRC-32C of all its bytes."""

    key: str
    bytes: int
    crc32c: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a backup.

    `position`: the position of its state; `created_ms`: ms since the epoch; `topics`, `objects` and
    `bytes`: counts for people; `snapshot`: the key of its state; `contents`: every object but the
    manifest itself.
    """

    version: int
    cluster_id: str
    position: int
    created_ms: int
    topics: int
    objects: int
    bytes: int
    contents: list[BackupObject]
    snapshot: str = METADATA


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    crc32c: int
    manifest: msgspec.Raw


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    version: int


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode `manifest.json`: indented JSON and its CRC-32C."""
    inner = msgspec.json.format(msgspec.json.encode(manifest))
    return b'{\n"crc32c": %d,\n"manifest": %b\n}\n' % (crc32c(inner), inner)


def decode_manifest(data: bytes) -> Manifest:
    """Parse and check `manifest.json`.

    Raises:
        CorruptDataError: the bytes are damaged.
        InvalidRequestError: a newer release has written the manifest.
    """
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        inner = bytes(envelope.manifest)
        if crc32c(inner) != envelope.crc32c:
            raise CorruptDataError("read backup", MANIFEST, "CRC-32C of the manifest differs")
        # The version is read first, since this release can't judge a newer version's other fields.
        version = msgspec.json.decode(inner, type=_Version).version
        if version not in _KNOWN_VERSIONS:
            raise InvalidRequestError(
                "read backup",
                MANIFEST,
                f"backup version {version}, this release knows 1 to {BACKUP_VERSION}",
                "restore it with the release that made it, or a later one",
            )
        manifest = msgspec.json.decode(inner, type=Manifest)
    except MALFORMED as error:
        raise CorruptDataError("read backup", MANIFEST, str(error)) from error
    if sum(entry.key == manifest.snapshot for entry in manifest.contents) != 1:
        raise CorruptDataError("read backup", MANIFEST, f"it does not list {manifest.snapshot}")
    return manifest
