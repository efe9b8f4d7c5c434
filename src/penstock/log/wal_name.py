"""The name of a WAL directory: its id, and the cluster whose records lie in it.

A directory's files are used again as soon as nothing names them. What names them is one cluster's
journal: against another's, all of them are free, and the records in them would be written over. So
`wal/id` names the cluster, and a directory of another one is refused while it holds any frame.
docs/formats/wal.md has the file's bytes. Blocking.
"""

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from penstock.model.errors import CorruptDataError, OtherClusterError
from penstock.ports.device import Device
from penstock.ports.random import Random
from penstock.wal.recovery import FOLDER, holds_frames

WAL_ID_BYTES: Final = 16
ID_FILE: Final = f"{FOLDER}/id"
_ID_FILE_MAKING: Final = f"{FOLDER}/id.new"
_VERSION: Final = 2
_MAGIC: Final = b"PWID"
_FIELDS: Final = struct.Struct(">4sB3x16s40s")
_CRC: Final = struct.Struct(">I")
_VERSION_1_BYTES: Final = WAL_ID_BYTES + _CRC.size


@dataclass(frozen=True, slots=True)
class WalName:
    """`cluster_id`: empty in a file of a release that did not write it."""

    wal_id: bytes
    cluster_id: str


def read_wal_name(device: Device) -> WalName | None:
    """The name of a WAL directory; None: it has none yet.

    Raises:
        CorruptDataError: the file is damaged, or a newer release's.
    """
    try:
        file = device.open(ID_FILE)
    except FileNotFoundError:
        return None
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    fields, crc = data[: -_CRC.size], data[-_CRC.size :]
    if crc == _CRC.pack(crc32c(fields)):
        if len(data) == _VERSION_1_BYTES:
            return WalName(fields, "")
        if len(fields) == _FIELDS.size and fields[:4] == _MAGIC and fields[4] == _VERSION:
            _, _, wal_id, cluster_id = _FIELDS.unpack(fields)
            return WalName(wal_id, cluster_id.rstrip(b"\0").decode("ascii", "replace"))
        if fields[:4] == _MAGIC:
            raise CorruptDataError(
                "read WAL id",
                ID_FILE,
                f"version {fields[4]}, this release knows {_VERSION} and older",
                "open it with the release that wrote it, or a later one",
            )
    raise CorruptDataError(
        "read WAL id",
        ID_FILE,
        f"{len(data)} bytes without their CRC-32C",
        "restore the file; of a single server, whose journal names its cluster, remove it: the next"
        " start writes another",
    )


def read_wal_id(device: Device) -> bytes | None:
    """The id of a WAL directory; None: it has none yet. Raises: CorruptDataError: it is damaged."""
    name = read_wal_name(device)
    return None if name is None else name.wal_id


def write_wal_name(device: Device, name: WalName) -> None:
    """Name a directory, durably. Nothing may be named in it under another id."""
    fields = _FIELDS.pack(_MAGIC, _VERSION, name.wal_id, name.cluster_id.encode("ascii"))
    file = device.open(_ID_FILE_MAKING, create=True)
    try:
        file.write_at(0, [fields + _CRC.pack(crc32c(fields))])
        file.sync()
    finally:
        file.close()
    device.rename(_ID_FILE_MAKING, ID_FILE)
    # Before anything can be named in it: a directory that came back without its id would be
    # another one, and its records lost.
    device.sync_directory(FOLDER)


def new_wal_name(device: Device, cluster_id: str, random: Random) -> bytes:
    """Make a directory another WAL, of a cluster; its id. Nothing may be named in it."""
    wal_id = random.token_bytes(WAL_ID_BYTES)
    write_wal_name(device, WalName(wal_id, cluster_id))
    return wal_id


def check_wal_name(device: Device, cluster_id: str) -> None:
    """Refuse a directory that names another cluster and holds frames; one without a name passes.

    Raises:
        OtherClusterError: it does.
    """
    name = read_wal_name(device)
    if name is not None and name.cluster_id not in ("", cluster_id):
        refuse_others_wal(device, cluster_id, of=name.cluster_id)


def refuse_others_wal(device: Device, cluster_id: str, *, of: str) -> None:
    """Refuse a directory of another cluster if there are frames in it.

    Args:
        cluster_id: the one whose journal this process follows; empty: it has none yet.
        of: the one that the directory belongs to; empty: nothing says which.

    Raises:
        OtherClusterError: there are.
    """
    if holds_frames(device):
        raise OtherClusterError(
            "open WAL",
            str(device),
            f"it holds records of {_described(of)}, and this server follows"
            f" {_described(cluster_id)}",
            "start it with the journal (or data directory) that the WAL belongs to, or give it"
            " another directory (`data`); move its folder wal/ away only if that cluster is gone",
            cluster_id=of,
        )


def _described(cluster_id: str) -> str:
    return f"cluster {cluster_id}" if cluster_id else "a cluster that is not known"
