"""Leases of jobs that the engine process does and the scheduler holds."""

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from penstock.model.errors import FencedError, PenstockError, RetryableError
from penstock.pipeline.api_messages import JobOpen, JobRequest
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.engine_process.link import Link
from penstock.pipeline.engine_process.messages import (
    CloseLease,
    Lease,
    LeaseLost,
    LeaseRefused,
    OpenLease,
    refusal,
    refused_error,
)
from penstock.pipeline.lease import JobLease
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

CLOSING_S: Final = 12.0
"""How long the end of all leases is waited for: a little more than the end of one."""
_MARGIN_S: Final = 10.0


class LeaseHolder:
    """The scheduler's side: registers, renews and closes. Any thread.

    Args:
        client: of the scheduler.
    """

    def __init__(self, client: PipelineClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._held: dict[int, JobLease] = {}
        self._generation = 0

    def open(self, asked: OpenLease, link: Link) -> None:
        """Register a job and send what came of it; the answer isn't waited for here."""
        generation = self._generation
        thread = threading.Thread(
            target=self._open, args=(asked, link, generation), name="open lease", daemon=True
        )
        thread.start()

    def close(self, job: int) -> None:
        """End one; that isn't waited for."""
        with self._lock:
            lease = self._held.pop(job, None)
        if lease is not None:
            _ended(lease)

    def close_all(self) -> None:
        """End those of an engine process that is gone, and those that it asked for last."""
        with self._lock:
            self._generation += 1
            leases, self._held = list(self._held.values()), {}
        threads = [_ended(lease) for lease in leases]
        for thread in threads:
            thread.join(CLOSING_S)

    def _open(self, asked: OpenLease, link: Link, generation: int) -> None:
        request = asked.request
        lease = JobLease(
            self._client,
            kind=request.kind,
            name=request.name,
            lease_ms=request.lease_ms,
            age_max_ms=request.age_max_ms,
            clock=self._client.clock,
            on_lost=_teller(link),
        )
        try:
            lease.__enter__()
        except PenstockError as error:
            _send(link, refusal(asked.token, error))
            return
        with self._lock:
            is_wanted = generation == self._generation
            if is_wanted:
                self._held[lease.job] = lease
        if not is_wanted:
            _ended(lease)
            return
        _send(
            link,
            Lease(asked.token, lease.job, lease.position, lease.time_ms, lease.lease_ms),
        )


def _ended(lease: JobLease) -> threading.Thread:
    thread = threading.Thread(target=lease.close, name="close lease", daemon=True)
    thread.start()
    return thread


def _teller(link: Link) -> Callable[[int, PenstockError], None]:
    def tell(job: int, error: PenstockError) -> None:
        _send(link, LeaseLost(job, str(error)))

    return tell


def _send(link: Link, message: Lease | LeaseRefused | LeaseLost) -> None:
    try:
        link.send(message)
    except RetryableError as error:
        # The engine process is gone, and its leases are closed for that.
        heard(Cause.JOB_LEASE, error, logger, "an engine process can't hear of its lease")


class ScheduledClient(PipelineClient):
    """The engine process's client: its jobs are registered by the scheduler."""

    def __init__(self, options: ClientOptions, link: Link) -> None:
        super().__init__(options)
        self._link = link
        self._lock = threading.Lock()
        self._waiting: dict[int, SimpleQueue[Lease | LeaseRefused]] = {}
        self._lost: dict[int, str] = {}
        self._tokens = 0

    def take(self, message: Lease | LeaseRefused | LeaseLost) -> None:
        """Hear from the scheduler."""
        with self._lock:
            if isinstance(message, LeaseLost):
                self._lost[message.job] = message.text
                return
            waiting = self._waiting.pop(message.token, None)
        if waiting is not None:
            waiting.put(message)

    def open_job(self, request: JobRequest) -> JobOpen:
        """Register a job as `PipelineClient.open_job` does, by the scheduler."""
        answer: SimpleQueue[Lease | LeaseRefused] = SimpleQueue()
        with self._lock:
            self._tokens += 1
            token = self._tokens
            self._waiting[token] = answer
        self._link.send(OpenLease(token, request))
        within_s = self.options.deadline_s + _MARGIN_S
        try:
            found = answer.get(timeout=within_s)
        except Empty as error:
            raise RetryableError(
                "open job", request.name, f"the scheduler didn't answer for {within_s:g} s"
            ) from error
        if isinstance(found, LeaseRefused):
            raise refused_error(found)
        return JobOpen(
            job=found.job,
            position=found.position,
            time_ms=found.time_ms,
            lease_ms=found.lease_ms,
        )

    def renew_job(self, job: int) -> None:
        """Look whether the scheduler has lost it. Raises: FencedError: it has."""
        with self._lock:
            lost = self._lost.get(job)
        if lost is not None:
            raise FencedError("renew job", str(job), lost)

    def close_job(self, job: int, *, deadline_s: float | None = None) -> None:  # noqa: ARG002
        """End a job as `PipelineClient.close_job` does, by the scheduler."""
        with self._lock:
            self._lost.pop(job, None)
        self._link.send(CloseLease(job))
