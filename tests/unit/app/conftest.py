"""For tests of the pipeline's API: a whole embedded server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.api_server import ApiServer, serve_in_thread


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    """One whose records stay in the WAL until it is drained."""
    with serve_in_thread(tmp_path / "data", segment_age_ms=3_600_000) as api:
        yield api
