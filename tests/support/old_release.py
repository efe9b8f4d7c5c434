"""A release that was shipped before, beside this one: its package, for processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import msgspec

RELEASES = Path(__file__).parents[1] / "golden" / "releases"
APPLIER = Path(__file__).with_name("release_applier.py")


def unpack_release(level: int, folder: Path) -> Path:
    """What PYTHONPATH begins with to run the release that knew feature levels up to `level`.

    Unpacked, since compiled functions are cached beside their modules, which no zip file allows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(RELEASES / f"level-{level}.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    return folder


def apply_by(release: Path, journals: list[Any]) -> Any:
    """What a release makes of journals; see `release_applier.apply_all`."""
    ended = subprocess.run(
        [sys.executable, str(APPLIER)],
        input=msgspec.msgpack.encode(journals),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(release)},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return msgspec.msgpack.decode(ended.stdout)
