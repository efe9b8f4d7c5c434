"""The parent of workers, with real processes that do nothing: started in order, started again,
drained with the one that writes the journal last."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from penstock.app.banner import Introduction
from penstock.app.host.supervisor import ParentLink, Supervisor
from penstock.app.host.workers import RestartDelays, WorkerPlace, worker_settings
from penstock.config.addresses import Address
from penstock.config.settings import ServerSettings
from penstock.model.errors import ConflictError, InvalidRequestError
from penstock.system.clock import SystemClock
from support.async_tests import options_of
from support.waiting import until

WORKER = """
import os, signal, sys
log, fate, place = sys.argv[1], sys.argv[2], sys.argv[-1]
index, descriptor = map(int, place.split(":"))
def say(text):
    with open(log, "a") as file:
        file.write(f"{text} {index}\\n")
def drain(*_):
    say("drained")
    sys.exit(0)
signal.signal(signal.SIGTERM, drain)
say("started")
if fate == f"fails{index}":
    sys.exit(3)
if fate == f"hangs{index}":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
rest = b'"advertised":["h",1],"http":null,"data":"/d","cluster_id":"c","node_id":1'
os.write(descriptor, b'{"pid": %d,%s}\\n' % (os.getpid(), rest))
while os.read(descriptor, 1):
    pass
say("orphaned")
"""


class Parent:
    def __init__(self, folder: Path, fate: str = "", *, drain_timeout_s: float = 30.0) -> None:
        self.log = folder / "log"
        self.log.touch()
        self.ready: list[Introduction] = []
        self.supervisor = Supervisor(
            3,
            command=[sys.executable, "-c", WORKER, str(self.log), fate or "-"],
            clock=SystemClock(),
            drain_timeout_s=drain_timeout_s,
            on_ready=self.ready.extend,
        )

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
async def parent(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Parent]:
    parent = Parent(tmp_path, **options_of(request))
    yield parent
    await parent.supervisor.stop()


@pytest.mark.slow
async def test_workers_start_in_order_and_the_first_drains_last(parent: Parent) -> None:
    await parent.supervisor.start()
    assert parent.lines() == ["started 0", "started 1", "started 2"]
    assert len({about.pid for about in parent.ready}) == 3
    await parent.supervisor.stop()
    ends = parent.lines()[3:]
    assert sorted(ends[:2]) == ["drained 1", "drained 2"]
    assert ends[2:] == ["drained 0"]


@pytest.mark.slow
async def test_a_worker_that_ends_is_started_again(parent: Parent) -> None:
    await parent.supervisor.start()
    os.kill(parent.ready[0].pid, signal.SIGKILL)
    await until(lambda: parent.lines().count("started 0") == 2)
    os.kill(parent.ready[2].pid, signal.SIGKILL)
    await until(lambda: parent.lines().count("started 2") == 2)
    assert parent.lines().count("started 1") == 1


@pytest.mark.options(fate="fails1")
async def test_one_that_never_serves_ends_the_others(parent: Parent) -> None:
    with pytest.raises(ConflictError, match="worker 1"):
        await parent.supervisor.start()
    assert parent.lines() == ["started 0", "started 1", "drained 0"]
    assert not parent.ready


# The parent waits twice as long and 5 s more.
@pytest.mark.slow
@pytest.mark.options(fate="hangs1", drain_timeout_s=-1.0)
async def test_one_that_does_not_drain_is_ended(parent: Parent) -> None:
    await parent.supervisor.start()
    await parent.supervisor.stop()
    assert "drained 2" in parent.lines()
    assert parent.lines()[-1] == "drained 0"
    assert "drained 1" not in parent.lines()


async def test_a_worker_sees_that_its_parent_is_gone() -> None:
    import socket

    ours, theirs = socket.socketpair()
    link = ParentLink(theirs.detach())
    gone = asyncio.Event()
    link.watch(gone.set)
    about = Introduction(
        pid=1,
        advertised=Address("127.0.0.1", 9092),
        http=None,
        data="/d",
        cluster_id="c",
        node_id=1,
    )
    link.say_ready(about)
    told = ours.recv(200)
    assert told.endswith(b"\n")
    assert msgspec.json.decode(told, type=Introduction) == about
    assert not link.is_parent_gone
    ours.close()
    await asyncio.wait_for(gone.wait(), 60)
    assert link.is_parent_gone
    link._socket.close()


def test_restarts_come_later_and_later_until_a_worker_has_settled() -> None:
    delays = RestartDelays()
    found = [delays.next_delay_s(ran_s=1) for _ in range(8)]
    assert found == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert delays.next_delay_s(ran_s=60) == 0.1


def test_each_worker_has_ports_of_its_own() -> None:
    base = ServerSettings(kafka="0.0.0.0:9092", http="127.0.0.1:8080", advertised="host:19092")
    third = worker_settings(base, 2)
    assert (third.kafka, third.http, third.advertised) == (
        "0.0.0.0:9094",
        "127.0.0.1:8082",
        "host:19094",
    )
    free = worker_settings(ServerSettings(kafka="127.0.0.1:0", http=""), 2)
    assert (free.kafka, free.http) == ("127.0.0.1:0", "")
    with pytest.raises(InvalidRequestError, match="above 65535"):
        worker_settings(ServerSettings(kafka="127.0.0.1:65535"), 1)


def test_a_worker_s_place_survives_its_text() -> None:
    assert WorkerPlace.parse(str(WorkerPlace(3, 17))) == WorkerPlace(3, 17)
    for text in ("", "3", "3:", ":4", "a:4", "3:-1"):
        with pytest.raises(InvalidRequestError):
            WorkerPlace.parse(text)
