"""One holder per data directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.errors import ConflictError
from penstock.system.lock import DirectoryLock


def test_a_second_holder_is_told_of_the_first(tmp_path: Path) -> None:
    with DirectoryLock.acquire(tmp_path / "data"):
        with pytest.raises(ConflictError) as caught:
            DirectoryLock.acquire(tmp_path / "data")
        assert str(os.getpid()) in str(caught.value)
        assert str(tmp_path / "data") in str(caught.value)


@pytest.mark.slow
def test_another_process_is_refused(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from penstock.system.lock import DirectoryLock\n"
        "try:\n"
        "    DirectoryLock.acquire(pathlib.Path(sys.argv[1]))\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    with DirectoryLock.acquire(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    assert done.stdout.startswith("ConflictError")
    assert f"process {os.getpid()} " in done.stdout


def test_a_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    lock = DirectoryLock.acquire(tmp_path)
    lock.release()
    lock.release()
    with DirectoryLock.acquire(tmp_path) as again:
        assert again.directory == tmp_path
    DirectoryLock.acquire(tmp_path).release()
