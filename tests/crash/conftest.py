"""Lets the tests of this folder import what the suites share; and a server for those that kill
what works beside it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.server import ServerProcess, running_server

QUICK = {
    "SEGMENT_AGE_MS": "100",
    "RETENTION_CHECK_MS": "200",
    "DELETE_GRACE_MS": "1000",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """It stores records at once, and soon deletes what nothing names."""
    with running_server(tmp_path, QUICK) as server:
        yield server
