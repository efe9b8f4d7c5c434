"""What a driver loads to write."""

import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[4] / "src"


def test_a_commit_loads_no_compiler() -> None:
    """Each batch of a stream may be planned, and committed, in a process of its own."""
    program = "import sys, penstock.pipeline.connector.write; print('numba' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert done.stdout.split() == ["False"]
