"""The engine process is started, and started again: real processes, the local engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.errors import RetryableError
from penstock.pipeline.engine_choice import EngineChoice
from penstock.pipeline.engine_process import keeper as module
from penstock.pipeline.engine_process.keeper import EngineKeeper, EngineState, JobFailedError
from penstock.pipeline.engine_process.leases import LeaseHolder
from penstock.pipeline.engine_process.link import Link
from penstock.pipeline.engine_process.messages import Message, Run, Start
from penstock.pipeline.jobs import Job, JobKind, JobSettings
from penstock.pipeline.tables.settings import CatalogSettings
from penstock.system.backoff import Backoff
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom
from support.api_server import ApiServer, serve_in_thread
from support.server import REPOSITORY
from support.waiting import eventually

COMPACTION = Job(kind=JobKind.COMPACTION)
LOCAL = EngineChoice(name="local", workers=1)


@pytest.fixture(autouse=True)
def short_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REST", Backoff(first_s=0.01, most_s=0.1))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "src"))


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path / "data") as found:
        yield found


def keep(
    api: ApiServer, tmp_path: Path, *, engine: EngineChoice = LOCAL, gives_up: bool = False
) -> EngineKeeper:
    settings = JobSettings(catalog=CatalogSettings(warehouse=str(tmp_path / "warehouse")))
    return EngineKeeper(
        Start(engine, api.client.options, settings),
        LeaseHolder(api.client),
        clock=SystemClock(),
        random=SystemRandom(),
        changed=lambda: None,
        gives_up=gives_up,
    )


@pytest.mark.slow
def test_it_does_jobs_and_ends_when_it_is_closed(api: ApiServer, tmp_path: Path) -> None:
    api.create("flights", 1)
    with keep(api, tmp_path) as keeper:
        eventually(lambda: keeper.is_ready)
        assert keeper.run(COMPACTION, threading.Event())["failures"] == []
        with pytest.raises(JobFailedError, match="make a table nothing: there is no such topic"):
            keeper.run(Job(kind=JobKind.TABLE, topic="nothing"), threading.Event())
        (pid,) = keeper.status().pids
        assert keeper.status().state is EngineState.READY
        eventually(lambda: bool(keeper.swallowed()))
    assert keeper.status().state is EngineState.STOPPED
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert api.client.tables() == []


@pytest.mark.slow
def test_one_that_is_killed_is_followed_by_another(api: ApiServer, tmp_path: Path) -> None:
    with keep(api, tmp_path) as keeper:
        for starts in (1, 2):
            eventually(lambda: keeper.is_ready and bool(keeper.status().pids))
            assert keeper.status().starts == starts
            (pid,) = keeper.status().pids
            os.kill(pid, signal.SIGKILL)
            eventually(lambda starts=starts: keeper.status().starts == starts + 1)
            assert "-9" in keeper.status().problem
        eventually(lambda: keeper.is_ready)
        assert keeper.run(COMPACTION, threading.Event())["failures"] == []


@pytest.mark.slow
def test_a_job_of_one_that_is_killed_fails_retriably_and_its_lease_is_closed(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped first, it has the job and can't be through with it."""
    is_sent = threading.Event()
    send = Link.send

    def note(link: Link, message: Message) -> None:
        send(link, message)
        if isinstance(message, Run):
            is_sent.set()

    monkeypatch.setattr(Link, "send", note)
    api.create("flights", 1, {"penstock.table": "iceberg"})
    api.produce("flights", 0, count=3)
    with keep(api, tmp_path) as keeper:
        eventually(lambda: keeper.is_ready)
        errors: list[Exception] = []

        def run() -> None:
            try:
                keeper.run(Job(kind=JobKind.TABLE, topic="flights"), threading.Event())
            except RetryableError as error:
                errors.append(error)

        (pid,) = keeper.status().pids
        os.kill(pid, signal.SIGSTOP)
        thread = threading.Thread(target=run)
        thread.start()
        assert is_sent.wait(60)
        os.kill(pid, signal.SIGKILL)
        thread.join(60)
        assert "its engine ended" in str(errors[0])
        eventually(lambda: keeper.is_ready)
        assert keeper.run(Job(kind=JobKind.TABLE, topic="flights"), threading.Event())["rows"] == 3


@pytest.mark.slow
def test_one_that_hangs_is_killed(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 3.0)
    with keep(api, tmp_path) as keeper:
        eventually(lambda: keeper.is_ready)
        (pid,) = keeper.status().pids
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: keeper.status().starts == 2)
        assert "said nothing for 3.0 s" in keeper.status().problem
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("engine", "package"),
    [(EngineChoice(name="spark", master="local[1]"), "pyspark"), (LOCAL, "pyiceberg")],
)
def test_an_engine_that_can_never_be_opened_is_not_tried_again(
    api: ApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: EngineChoice,
    package: str,
) -> None:
    folder = hidden(tmp_path, package)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(REPOSITORY / "src")]))
    with keep(api, tmp_path, engine=engine) as keeper:
        eventually(lambda: keeper.status().state is EngineState.STOPPED)
        assert "pip install 'penstock[spark]'" in keeper.fatal
        assert keeper.status().starts == 1


def hidden(tmp_path: Path, package: str) -> Path:
    """A folder whose package can't be imported."""
    folder = tmp_path / "hidden" / package
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(f"raise ImportError('no {package} here')")
    return folder.parent


SCHEDULER = """
import sys, time
from penstock.pipeline.client import PipelineClient, ClientOptions
from penstock.pipeline.engine_choice import EngineChoice
from penstock.pipeline.engine_process.keeper import EngineKeeper
from penstock.pipeline.engine_process.leases import LeaseHolder
from penstock.pipeline.engine_process.link import Link
from penstock.pipeline.engine_process.messages import Message, Run, Start
from penstock.pipeline.jobs import JobSettings
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom

api = ClientOptions(urls=("http://127.0.0.1:1",))
start = Start(EngineChoice(name="local", workers=1), api, JobSettings())
keeper = EngineKeeper(start, LeaseHolder(PipelineClient(api)), clock=SystemClock(),
                      random=SystemRandom(), changed=lambda: None)
with keeper:
    while not keeper.is_ready:
        time.sleep(0.01)
    print(*keeper.status().pids, "pyspark" in sys.modules, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_the_schedulers_death_ends_it() -> None:
    scheduler = subprocess.Popen(
        [sys.executable, "-c", SCHEDULER], stdout=subprocess.PIPE, text=True
    )
    try:
        assert scheduler.stdout is not None
        pid, has_spark = scheduler.stdout.readline().split()
        assert has_spark == "False"
        os.kill(int(pid), 0)
    finally:
        scheduler.kill()
        scheduler.communicate()
    eventually(lambda: is_gone(int(pid)))


def is_gone(pid: int) -> bool:
    """Whether a process that isn't ours has ended: it may wait for an init that takes its time."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"
