"""A snapshot that another process writes is the same; what befalls it is told."""

from pathlib import Path

import pytest

from penstock.model.errors import NotFoundError, PenstockError, RetryableError
from penstock.replica.replica import Replica
from penstock.replica.snapshot import verify_snapshot, write_snapshot
from penstock.replica.snapshot_process import write_snapshot_apart
from penstock.state.apply.machine import LogMachine


@pytest.fixture
def live(tmp_path: Path) -> Path:
    path = tmp_path / "live.sqlite"
    Replica.open(path, LogMachine()).close()
    return path


@pytest.mark.slow
def test_it_is_what_this_process_would_write(live: Path, tmp_path: Path) -> None:
    here = write_snapshot(live, tmp_path / "here.sqlite")
    apart = write_snapshot_apart(live, tmp_path / "apart.sqlite", apart_bytes=0)
    assert apart == here == verify_snapshot(tmp_path / "apart.sqlite")
    small = write_snapshot_apart(live, tmp_path / "small.sqlite")
    assert small == here


@pytest.mark.slow
def test_errors_are_told_as_here(live: Path, tmp_path: Path) -> None:
    with pytest.raises(PenstockError) as apart:
        write_snapshot_apart(live, tmp_path / "none" / "x.sqlite", apart_bytes=0)
    with pytest.raises(PenstockError) as here:
        write_snapshot(live, tmp_path / "none" / "x.sqlite")
    assert isinstance(apart.value, type(here.value) | RetryableError)
    assert str(here.value) == str(apart.value)


def test_a_process_that_fails_otherwise_is_retriable(live: Path, tmp_path: Path) -> None:
    live.write_bytes(b"no database")
    with pytest.raises((RetryableError, PenstockError)) as caught:
        write_snapshot_apart(live, tmp_path / "x.sqlite", apart_bytes=0)
    assert not isinstance(caught.value, NotFoundError)
    assert not (tmp_path / "x.sqlite").exists()
