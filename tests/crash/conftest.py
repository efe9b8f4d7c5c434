"""Lets the tests of this folder import what the suites share; and a server for those that kill
what works beside it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.server import ServerProcess

QUICK = {
    "SEGMENT_AGE_MS": "100",
    "RETENTION_CHECK_MS": "200",
    "DELETE_GRACE_MS": "1000",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """It stores records at once, and soon deletes what nothing names."""
    server = ServerProcess(tmp_path / "data", tmp_path / "server.log", QUICK)
    server.start()
    yield server
    if server.running():
        server.kill()
