"""Leases that the scheduler holds for the jobs of its engine process."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from penstock.model.errors import FencedError, NotFoundError, PenstockError
from penstock.pipeline.api_messages import JobOpen, JobRequest
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.engine_process.leases import LeaseHolder, ScheduledClient
from penstock.pipeline.engine_process.link import Link
from penstock.pipeline.engine_process.messages import (
    CloseLease,
    Lease,
    LeaseLost,
    LeaseRefused,
    OpenLease,
)
from penstock.pipeline.lease import JobLease
from support.waiting import eventually


class Agents(PipelineClient):
    """The calls that leases make, answered here."""

    def __init__(self) -> None:
        super().__init__(ClientOptions(urls=("http://127.0.0.1:1",)))
        self.opened: list[JobRequest] = []
        self.open_error: PenstockError | None = None
        self.renew_error: PenstockError | None = None
        self.renewals = 0
        self.closed: list[int] = []
        self.slowly = threading.Event()
        self.slowly.set()

    def open_job(self, request: JobRequest) -> JobOpen:
        assert self.slowly.wait(60)
        if self.open_error is not None:
            raise self.open_error
        self.opened.append(request)
        return JobOpen(job=len(self.opened), position=40, time_ms=50, lease_ms=40)

    def renew_job(self, job: int) -> None:
        self.renewals += 1
        if self.renew_error is not None:
            raise self.renew_error

    def close_job(self, job: int, *, deadline_s: float | None = None) -> None:
        self.closed.append(job)


@dataclass
class Pair:
    """Both sides, joined by a socket."""

    agents: Agents
    holder: LeaseHolder
    client: ScheduledClient
    scheduler: Link
    threads: list[threading.Thread] = field(default_factory=list)


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = map(Link, socket.socketpair())
    agents = Agents()
    holder = LeaseHolder(agents)
    client = ScheduledClient(ClientOptions(urls=("http://127.0.0.1:1",), deadline_s=50), theirs)
    made = Pair(agents, holder, client, ours)

    def schedule() -> None:
        while (message := ours.receive()) is not None:
            if isinstance(message, OpenLease):
                holder.open(message, ours)
            elif isinstance(message, CloseLease):
                holder.close(message.job)

    def engine() -> None:
        while (message := theirs.receive()) is not None:
            assert isinstance(message, Lease | LeaseRefused | LeaseLost)
            client.take(message)

    made.threads = [threading.Thread(target=schedule), threading.Thread(target=engine)]
    for thread in made.threads:
        thread.start()
    yield made
    holder.close_all()
    ours.close()
    theirs.close()
    for thread in made.threads:
        thread.join()
    client.close()


def test_a_job_of_the_engine_process_is_registered_renewed_and_closed(pair: Pair) -> None:
    with JobLease(pair.client, kind="table", name="flights") as job:
        assert (job.job, job.position, job.time_ms, job.lease_ms) == (1, 40, 50, 40)
        eventually(lambda: pair.agents.renewals >= 3)
        job.check()
    eventually(lambda: pair.agents.closed == [1])
    assert (pair.agents.opened[0].kind, pair.agents.opened[0].name) == ("table", "flights")


def test_what_the_agents_refuse_is_the_same_error_there(pair: Pair) -> None:
    pair.agents.open_error = NotFoundError("open job", "x", "no such thing", "make it")
    with (
        pytest.raises(NotFoundError, match=r"no such thing \(make it\)"),
        JobLease(pair.client, kind="table", name="x"),
    ):
        pass


def test_a_lease_that_is_lost_fences_its_job(pair: Pair) -> None:
    pair.agents.renew_error = FencedError("renew", "1", "it was closed")
    with JobLease(pair.client, kind="table", name="x") as job:

        def is_lost() -> bool:
            try:
                job.check()
            except FencedError as error:
                return "it was closed" in str(error)
            return False

        eventually(is_lost)


def test_the_leases_of_an_engine_process_that_is_gone_are_closed(pair: Pair) -> None:
    for name in ("a", "b"):
        JobLease(pair.client, kind="table", name=name).__enter__()
    pair.holder.close_all()
    assert sorted(pair.agents.closed) == [1, 2]


def test_one_that_it_asked_for_last_is_closed_once_it_is_open(pair: Pair) -> None:
    pair.agents.slowly.clear()
    pair.holder.open(OpenLease(9, JobRequest(kind="table", name="late")), pair.scheduler)
    pair.holder.close_all()
    pair.agents.slowly.set()
    eventually(lambda: pair.agents.closed == [1])
