"""What a power loss leaves of a folder: the bytes and the names that were synced, no others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class PowerCut:
    """Watches all that this process syncs below a folder, from when it is made.

    Args:
        patch: whose patches end with the test.
        root: a folder that is there, and survives.
    """

    def __init__(self, patch: pytest.MonkeyPatch, root: Path) -> None:
        self._root = root
        self._bytes: dict[Path, bytes] = {}
        self._names: dict[Path, set[str]] = {}
        self._strikes_at: tuple[dict[Path, bytes], dict[Path, set[str]]] = ({}, {})
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._watching(getattr(os, name)))

    def _watching(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def watched(descriptor: int) -> None:
            sync(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path.is_relative_to(self._root):
                if path.is_dir():
                    self._names[path] = {entry.name for entry in path.iterdir()}
                else:
                    self._bytes[path] = path.read_bytes()

        return watched

    def strikes_here(self) -> None:
        """What is synced from now on doesn't count, unless this is called again."""
        self._strikes_at = dict(self._bytes), dict(self._names)

    def happen(self, keeping: Callable[[Path], bool]) -> None:
        """Take away what wasn't synced.

        Args:
            keeping: files that others sync, whom this can't watch.
        """
        contents, names = self._strikes_at
        for path in sorted(self._root.rglob("*"), reverse=True):
            if keeping(path):
                continue
            if path.name not in names.get(path.parent, set()):
                remove: Any = shutil.rmtree if path.is_dir() else Path.unlink
                remove(path)
            elif path.is_file():
                path.write_bytes(contents.get(path, b""))
