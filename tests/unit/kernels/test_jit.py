"""Kernels work wherever their machine code can be kept, and where it can't."""

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.kernels import jit

pytestmark = pytest.mark.slow  # each test compiles in processes of its own

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
        timeout=600,
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


OTHER = """
import contextlib, sys
from pathlib import Path
from penstock.kernels import jit
from unit.kernels.test_jit import increased

jit.cache_folder = lambda: Path(sys.argv[1])
whole = jit._one_at_a_time

@contextlib.contextmanager
def told(folder):
    print("saving", flush=True)
    with whole(folder):
        yield

jit._one_at_a_time = told
assert jit.kernel(increased)(1.5) == 2.5
"""


def increased(number: float) -> float:
    return number + 1


def test_two_that_compile_a_kernel_at_once_keep_each_their_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For other types, in two processes: numba alone would let both take one file for theirs."""
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path)
    first, later = jit.kernel(increased), jit.kernel(increased)
    cache: Any = first._cache._cache_file  # type: ignore[attr-defined]
    whole = cache._save_index
    others: list[subprocess.Popen[str]] = []

    def save_index(overloads: Any) -> None:
        # Between reading and writing the index.
        environment = {**os.environ, "PYTHONPATH": f"{SOURCES}{os.pathsep}{SOURCES.parent}/tests"}
        others.append(
            subprocess.Popen(
                [sys.executable, "-c", OTHER, str(tmp_path)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert others[0].stdout is not None
        assert others[0].stdout.readline() == "saving\n"
        # It has to wait for us, and saves at once where nothing keeps it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            others[0].wait(2)
        whole(overloads)

    cache._save_index = save_index
    try:
        assert first(1) == 2
        assert others[0].wait(300) == 0
    finally:
        for other in others:
            other.kill()
            other.communicate()
    assert (later(1), later(1.5)) == (2, 2.5)
    hits: Any = later.stats.cache_hits  # type: ignore[attr-defined]
    assert sum(hits.values()) == 2
    assert len(later.signatures) == 2  # type: ignore[attr-defined]
