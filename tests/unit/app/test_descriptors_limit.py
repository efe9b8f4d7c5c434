"""The limit of open files is raised as far as it goes, and clients never take the storage's."""

import logging
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.app.descriptors import (
    STORAGE_FILES,
    connections_within,
    fit_open_files,
    kept_files,
    raise_limit,
)
from penstock.config.settings import ServerSettings
from penstock.model.errors import InvalidRequestError


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_soft_limit_becomes_the_hard_one() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    limit = raise_limit()
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert limit > 256
    assert soft == limit
    if hard != resource.RLIM_INFINITY:
        assert soft == hard
    assert raise_limit() == limit


def test_connections_leave_the_storage_its_files() -> None:
    assert connections_within(100_000, 10_000, kept=200) == 10_000
    assert connections_within(1024, 10_000, kept=200) == 1024 - 200
    with pytest.raises(InvalidRequestError, match="ulimit -n"):
        connections_within(200, 10_000, kept=200)


def test_each_http_port_has_files_of_its_own() -> None:
    alone = ServerSettings(http_connections_max=50)
    assert kept_files(alone) == STORAGE_FILES + 50
    assert kept_files(msgspec.structs.replace(alone, http="")) == STORAGE_FILES
    agent = msgspec.structs.replace(alone, journal="postgresql://host/database")
    assert kept_files(agent) == STORAGE_FILES + 100


def test_lowering_connections_max_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    limit = raise_limit()
    fits = fit_open_files(ServerSettings(connections_max=10))
    assert fits.connections_max == 10
    assert not caplog.records
    lowered = fit_open_files(ServerSettings(connections_max=limit))
    kept = kept_files(ServerSettings())
    assert lowered.connections_max == limit - kept
    (record,) = caplog.records
    assert f"connections_max is {limit - kept} instead of {limit}" in record.getMessage()


@pytest.mark.slow
def test_a_server_that_starts_fits_itself_into_its_limit(tmp_path: Path) -> None:
    code = f"""
        import resource
        from penstock.app.run import run
        from penstock.config.settings import ServerSettings

        resource.setrlimit(resource.RLIMIT_NOFILE, (240, 260))
        run(ServerSettings(data={str(tmp_path)!r}, kafka="127.0.0.1:0", http=""))
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            assert "is ready" in server.stdout.readline()
            server.send_signal(signal.SIGINT)
            _, logged = server.communicate(timeout=120)
        finally:
            server.kill()
    assert server.returncode == 0
    assert logged.count("connections_max is 60 instead of 10000") == 1
