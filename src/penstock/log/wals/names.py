"""The name of a WAL directory: its id, and the cluster whose records lie in it.

A directory's files are used again as soon as nothing names them. What names them is one cluster's
journal: against another's, all of them are free, and the records in them would be written over. So
`wal/cluster` names the cluster, and a directory of another one is refused while it holds any frame.
The id lies in a file of its own, `wal/id`, as releases before feature level 4 read and write it.
docs/formats/wal.md has the files' bytes. Blocking.
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
CLUSTER_FILE: Final = f"{FOLDER}/cluster"
_MAKING_SUFFIX: Final = ".new"
_VERSION: Final = 1
_MAGIC: Final = b"PWCL"
_FIELDS: Final = struct.Struct(">4sB3x16s40s")
_CRC: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class WalName:
    """`cluster_id`: empty in a directory of a release that did not write it."""

    wal_id: bytes
    cluster_id: str


def read_wal_name(device: Device) -> WalName | None:
    """The name of a WAL directory; None: it has none yet.

    Raises:
        CorruptDataError: a file of it is damaged, or a newer release's.
    """
    wal_id = _read_checked(
        device,
        ID_FILE,
        "restore the file; of a single server, whose journal names its cluster, remove it: the next"
        " start writes another",
    )
    if wal_id is None:
        return None
    if len(wal_id) != WAL_ID_BYTES:
        raise CorruptDataError(
            "read WAL id",
            ID_FILE,
            f"{len(wal_id)} bytes and a CRC-32C, an id has {WAL_ID_BYTES}",
            "open it with the release that wrote it, or a later one",
        )
    return WalName(wal_id, _read_cluster_id(device, wal_id))


def _read_cluster_id(device: Device, wal_id: bytes) -> str:
    """Empty: a release that does not write it has named the directory since."""
    fields = _read_checked(
        device,
        CLUSTER_FILE,
        f"restore the file, or remove it: the next start writes another, if its journal knows the"
        f" id in {ID_FILE}",
    )
    if fields is None:
        return ""
    if fields[:4] != _MAGIC or len(fields) != _FIELDS.size or fields[4] != _VERSION:
        raise CorruptDataError(
            "read WAL's cluster",
            CLUSTER_FILE,
            f"version {fields[4]} of {len(fields)} bytes, this release knows version {_VERSION} of"
            f" {_FIELDS.size}",
            "open it with the release that wrote it, or a later one",
        )
    _, _, of, cluster_id = _FIELDS.unpack(fields)
    return cluster_id.rstrip(b"\0").decode("ascii", "replace") if of == wal_id else ""


def _read_checked(device: Device, name: str, hint: str) -> bytes | None:
    """A file's bytes before its CRC-32C, at least five of them; None: there is no such file."""
    try:
        file = device.open(name)
    except FileNotFoundError:
        return None
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    fields, crc = data[: -_CRC.size], data[-_CRC.size :]
    if len(fields) < _CRC.size + 1 or crc != _CRC.pack(crc32c(fields)):
        raise CorruptDataError(
            "read WAL id", name, f"{len(data)} bytes without their CRC-32C", hint
        )
    return fields


def read_wal_id(device: Device) -> bytes | None:
    """The id of a WAL directory; None: it has none yet. Raises: CorruptDataError: it is damaged."""
    name = read_wal_name(device)
    return None if name is None else name.wal_id


def write_wal_name(device: Device, name: WalName) -> None:
    """Name a directory, durably. Nothing may be named in it under another id.

    The cluster is written first: an id without a cluster would pass for an older release's.
    """
    _write_checked(
        device,
        CLUSTER_FILE,
        _FIELDS.pack(_MAGIC, _VERSION, name.wal_id, name.cluster_id.encode("ascii")),
    )
    _write_checked(device, ID_FILE, name.wal_id)


def _write_checked(device: Device, name: str, fields: bytes) -> None:
    file = device.open(name + _MAKING_SUFFIX, create=True)
    try:
        file.write_at(0, [fields + _CRC.pack(crc32c(fields))])
        file.sync()
    finally:
        file.close()
    device.rename(name + _MAKING_SUFFIX, name)
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
