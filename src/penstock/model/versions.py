"""Remembers which version of each object the kept pieces belong to. Pure.

Pieces of two versions of an object are never kept together: batches, runs and the index that names
them are then of one object, whatever came when. What a version is: `penstock.ports.objects`.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

N = TypeVar("N", bound=Hashable)


class KeptVersions(Generic[N]):
    """The names of pieces by object, for a cache that keeps the pieces themselves."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[str | None, dict[N, None]]] = {}

    def version_of(self, key: str) -> str | None:
        """The version of an object's pieces; None: there are none, or their store says none."""
        found = self._objects.get(key)
        return None if found is None else found[0]

    def add(self, key: str, name: N, version: str | None) -> list[N]:
        """Keep one more piece of an object.

        Returns:
            The pieces of another version, which are kept no more.
        """
        others = self.of_others(key, version)
        if others or key not in self._objects:
            self._objects[key] = (version, {})
        self._objects[key][1][name] = None
        return others

    def of_others(self, key: str, version: str | None) -> list[N]:
        """The pieces of an object, if they are of another version."""
        found = self._objects.get(key)
        return [] if found is None or found[0] == version else list(found[1])

    def remove(self, key: str, name: N) -> None:
        """A piece is kept no more."""
        found = self._objects.get(key)
        if found is not None:
            found[1].pop(name, None)
            if not found[1]:
                del self._objects[key]

    def clear(self) -> None:
        """Nothing is kept any more."""
        self._objects.clear()
