"""Kernels work wherever their machine code can be kept, and where it can't."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.kernels import jit

SOURCES = Path(__file__).resolve().parents[3] / "src"
PROGRAM = """
from penstock.kernels import jit
from penstock.kernels.varints import varint_bytes
assert varint_bytes(-65) == 2
print(jit.cache_folder(), int(varint_bytes.stats.cache_hits.get(varint_bytes.signatures[0], 0) > 0))
"""


def run(folder: Path | None, home: Path, temporary: Path) -> tuple[str, bool]:
    """In a fresh process: the folder that was chosen, and whether machine code came from it."""
    environment = {
        "PYTHONPATH": str(SOURCES),
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(temporary),
    }
    if folder is not None:
        environment[jit.CACHE_VARIABLE] = str(folder)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    place, hit = done.stdout.split()
    return place, hit == "1"


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("home", "temporary"):
        (tmp_path / name).mkdir(mode=0o700)
    return tmp_path / "home", tmp_path / "temporary"


def test_the_second_process_compiles_nothing(places: tuple[Path, Path]) -> None:
    first, hit = run(None, *places)
    assert not hit
    assert Path(first).is_relative_to(places[0])
    assert stat.S_IMODE(Path(first).stat().st_mode) == 0o700
    assert run(None, *places) == (first, True)
    assert not list((SOURCES / "penstock" / "kernels" / "__pycache__").glob("*.nbi"))


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions of POSIX")
def test_a_folder_that_cannot_be_written_is_not_used(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    """A file where the folder should be stands for a read-only file system, also for root."""
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    place, _ = run(in_the_way / "cache", *places)
    assert Path(place).is_relative_to(places[1])
    assert run(in_the_way / "cache", *places) == (place, True)
    assert run(in_the_way / "cache", places[0], in_the_way)[0] != place


def test_kernels_run_without_any_cache(places: tuple[Path, Path]) -> None:
    assert run(Path("off"), *places) == ("None", False)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions of POSIX")
def test_a_folder_that_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    """What is loaded from it is run."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert not jit._is_ours(shared)
    shared.chmod(0o755)
    assert jit._is_ours(shared)


def test_the_settings_of_others_kernels_stay(tmp_path: Path) -> None:
    from numba.core import config

    before = config.CACHE_DIR
    jit.kernel(lambda number: number)
    assert before == config.CACHE_DIR
