"""The order in which two processes that share a folder's files, each whole, begin with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest


def begin_with(items: list[pytest.Item], folder: Path, names: Sequence[str]) -> None:
    """Put a folder's files of these names first, in this order: the last file to begin must not be
    a long one. All else stays in its place.

    Args:
        items: all that was collected; changed.
        names: without ".py".
    """
    rank = {name: place for place, name in enumerate(names)}
    places = [index for index, item in enumerate(items) if folder in item.path.parents]
    ordered = sorted(
        (items[index] for index in places), key=lambda item: rank.get(item.path.stem, len(names))
    )
    for index, item in zip(places, ordered, strict=True):
        items[index] = item
