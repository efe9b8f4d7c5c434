"""A registered job: opened, renewed by a thread for as long as it runs, closed at its end."""

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from penstock.model.errors import FencedError, PenstockError, RetryableError
from penstock.pipeline.api_messages import JobRequest
from penstock.pipeline.client import PipelineClient
from penstock.ports.clock import Clock
from penstock.system.clock import SystemClock
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

LEASE_MS: Final = 300_000
AGE_MAX_MS: Final = 86_400_000
_END_S: Final = 10.0
"""How long an end that agents don't hear of is waited for."""
_RENEWALS_PER_LEASE: Final = 4


class JobLease:
    """A job of the cluster, as a context manager: `with JobLease(client, kind=..., name=...)`.

    The driver has the lease; tasks get only the job's number. `check` comes before work that needs
    the job, and each commit names the job as well.

    Args:
        kind: compaction, read, write, table, verify, ...
        name: for people: who runs it.
        lease_ms: the agents close a job that wasn't renewed for this long.
        age_max_ms: past it the agents close it in any case.
        on_lost: called with the job's number, in a thread, when the agents have closed it.
    """

    def __init__(
        self,
        client: PipelineClient,
        *,
        kind: str,
        name: str,
        lease_ms: int = LEASE_MS,
        age_max_ms: int = AGE_MAX_MS,
        clock: Clock | None = None,
        on_lost: Callable[[int, PenstockError], None] | None = None,
    ) -> None:
        self._client = client
        self._on_lost = on_lost
        self._request = JobRequest(kind=kind, name=name, lease_ms=lease_ms, age_max_ms=age_max_ms)
        self._clock = clock or SystemClock()
        self._lost: PenstockError | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._renewed_s = 0.0
        self._lease_s = lease_ms / 1000
        self.job = 0
        self.position = 0
        """Everything at this position of the journal or later stays readable."""
        self.time_ms = 0
        """Journal time there."""

    def __enter__(self) -> Self:
        before_s = self._clock.monotonic_s()
        opened = self._client.open_job(self._request)
        self.job, self.position, self.time_ms = opened.job, opened.position, opened.time_ms
        self._lease_s = opened.lease_ms / 1000
        self._start(before_s)
        return self

    def take_over(self, job: int) -> None:
        """Renew a job that another process has opened, from now on, in place of a new one.

        Raises:
            FencedError, NotFoundError: it is over.
        """
        before_s = self._clock.monotonic_s()
        self._client.renew_job(job)
        self.job = job
        self._start(before_s)

    def leave(self) -> None:
        """Renew it no more, and leave it open: it ends with its lease, or another takes it over."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_END_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self.leave()
        # What it holds back is let go by the agents, should they not hear of its end.
        try:
            self._client.close_job(self.job, deadline_s=_END_S)
        except PenstockError as failure:
            heard(Cause.JOB_LEASE, failure, logger, f"job {self.job} ends with its lease")

    @property
    def lease_ms(self) -> int:
        """Return for how long it is kept without being renewed."""
        return round(self._lease_s * 1000)

    def check(self) -> None:
        """
        Raises:
            FencedError: the job was closed, or could not be renewed for as long as its lease:
                objects that it reads may be deleted, and its commits are refused.
        """
        lost = self._lost
        if lost is not None:
            raise FencedError("run job", str(self.job), str(lost), "start it again")
        silent_s = self._clock.monotonic_s() - self._renewed_s
        if silent_s > self._lease_s:
            raise FencedError(
                "run job",
                str(self.job),
                f"it could not be renewed for {silent_s:.0f} s",
                "start it again",
            )

    def _start(self, renewed_s: float) -> None:
        self._renewed_s = renewed_s
        self._thread = threading.Thread(
            target=self._renew, name=f"lease of job {self.job}", daemon=True
        )
        self._thread.start()

    def _renew(self) -> None:
        while not self._over.wait(self._lease_s / _RENEWALS_PER_LEASE):
            before_s = self._clock.monotonic_s()
            try:
                self._client.renew_job(self.job)
            except RetryableError as error:
                heard(Cause.JOB_LEASE, error, logger, f"job {self.job} can't be renewed now")
            except PenstockError as error:
                self._lost = error
                heard(Cause.JOB_LOST, error, logger, f"job {self.job} is lost")
                if self._on_lost is not None:
                    self._on_lost(self.job, error)
                return
            else:
                self._renewed_s = before_s
