"""For tests of the pipeline's door: a whole embedded server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.door import Door, serve_in_thread


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """One whose records stay in the WAL until it is drained."""
    with serve_in_thread(tmp_path / "data", segment_age_ms=3_600_000) as door:
        yield door
