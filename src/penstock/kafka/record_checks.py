"""Records of produced batches, checked without holding the event loop. Event loop only.

What is short is checked where its request is parsed: per turn of the loop at most TURN_RECORDS
records and TURN_BYTES of what compressed bytes give, all connections together. The rest goes to a
thread of its own, in the order of arrival; a stretch of one batch is followed by one of another,
so that a batch that costs much doesn't hold up the others', and at most OPEN_MAX batches are begun
at one time, so that what decompressors keep is bounded, too.

One thread: walking records is Python, which the threads of a process run one at a time, so that a
second would only take turns from the loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final

from penstock.records.batch import BatchError, BatchLimits, NewBatch, codec_of
from penstock.records.check import RecordCheck
from penstock.records.walk import ALIKE_RECORDS
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

TURN_RECORDS: Final = 2_000
"""At half a microsecond each; ten that are alike count as one, see `RecordWalk.work`."""
TURN_BYTES: Final = 64 << 10
PACKED_BYTES_MAX: Final = 16 << 10
"""A compressed batch of more goes to the thread at once."""
STRETCH_RECORDS: Final = 1_000
STRETCH_BYTES: Final = 1 << 20
JOB_STRETCHES: Final = 20
OPEN_MAX: Final = 2

Done = Callable[[BaseException | None], None]
"""Gets None, a BatchError, or what a bug of ours raised."""
_Outcomes = dict[RecordCheck, BaseException | None]


class RecordChecks:
    """The checks of one server.

    Args:
        pool: where long ones run; None: in a thread of its own, started with the first of them.
    """

    def __init__(self, pool: Executor | None = None) -> None:
        self._pool = pool
        self._own_pool: ThreadPoolExecutor | None = None
        self._records_left = TURN_RECORDS
        self._bytes_left = TURN_BYTES
        # In dictionaries, so that one that is forgotten costs no search.
        self._open: dict[RecordCheck, Done] = {}
        self._waiting: dict[RecordCheck, Done] = {}
        self._job: asyncio.Future[_Outcomes] | None = None

    @property
    def waiting_count(self) -> int:
        """Batches that wait for the thread, or are in it."""
        return len(self._open) + len(self._waiting)

    def check_of(self, batch: NewBatch, limits: BatchLimits, now_ms: int) -> RecordCheck:
        """The check of a batch's records, not yet begun; see `RecordCheck`."""
        return RecordCheck(batch, limits, now_ms)

    def try_now(self, check: RecordCheck) -> bool:
        """Whether the check could be done at once, within what this turn of the loop has left.

        Raises:
            BatchError: the records are refused.
        """
        batch, walk = check.batch, check.walk
        if batch.record_count > self._records_left * ALIKE_RECORDS:
            return False
        is_packed = codec_of(batch.view) != 0
        if is_packed and (self._bytes_left <= 0 or batch.length > PACKED_BYTES_MAX):
            return False
        if self._records_left == TURN_RECORDS and self._bytes_left == TURN_BYTES:
            asyncio.get_running_loop().call_soon(self._new_turn)
        try:
            is_over = walk.advance(
                records=self._records_left,
                decoded_bytes=self._bytes_left if is_packed else STRETCH_BYTES,
                long_records=False,
            )
        except BatchError:
            self._records_left -= batch.record_count  # that many at most
            raise
        finally:
            if is_packed:
                self._bytes_left -= walk.decoded_bytes
        self._records_left -= walk.work
        if is_over:
            check.settle()
        return is_over

    def queue(self, check: RecordCheck, done: Done) -> None:
        """Check in the thread; `done` is called on the loop, later."""
        self._waiting[check] = done
        self._start()

    def forget(self, checks: Iterable[RecordCheck]) -> None:
        """Stop checking these: no request waits for them, and they hold their batches. `done` is
        not called. The thread lets go of a batch that it is checking after a few stretches."""
        for check in checks:
            self._waiting.pop(check, None)
            self._open.pop(check, None)

    def close(self) -> None:
        """Check no more: what waits is forgotten."""
        self._waiting.clear()
        self._open.clear()
        if self._own_pool is not None:
            self._own_pool.shutdown(wait=False, cancel_futures=True)
            self._own_pool = None

    def _new_turn(self) -> None:
        self._records_left = TURN_RECORDS
        self._bytes_left = TURN_BYTES

    def _start(self) -> None:
        if self._job is not None:
            return
        while self._waiting and len(self._open) < OPEN_MAX:
            check = next(iter(self._waiting))
            self._open[check] = self._waiting.pop(check)
        if not self._open:
            return
        pool = self._pool or self._own_pool
        if pool is None:
            pool = self._own_pool = ThreadPoolExecutor(1, thread_name_prefix="records")
        # The thread has these to itself until the job is over.
        job = asyncio.get_running_loop().run_in_executor(pool, _work, list(self._open))
        self._job = job
        job.add_done_callback(self._over)

    def _over(self, job: "asyncio.Future[_Outcomes]") -> None:
        self._job = None
        if job.cancelled():  # closed meanwhile
            return
        outcomes = job.result()
        ended: list[tuple[Done, BaseException | None]] = []
        for check, error in outcomes.items():
            done = self._open.pop(check, None)
            if done is not None:  # else it was forgotten meanwhile
                ended.append((done, error))
        # The thread goes on while those that are over are taken.
        self._start()
        loop = asyncio.get_running_loop()
        for done, error in ended:
            # Each by itself: a bug in one must not leave the others waiting.
            loop.call_soon(done, error)


def _work(checks: list[RecordCheck]) -> _Outcomes:
    """A few stretches of each; what those came to that are over."""
    outcomes: _Outcomes = {}
    for _ in range(JOB_STRETCHES):
        for check in checks:
            if check in outcomes:
                continue
            try:
                if check.walk.advance(records=STRETCH_RECORDS, decoded_bytes=STRETCH_BYTES):
                    check.settle()
                    outcomes[check] = None
            except BatchError as error:
                outcomes[check] = error
            except Exception as error:  # noqa: BLE001 - of this batch alone
                heard(Cause.RECORD_CHECK, error, logger, "a check of records failed")
                outcomes[check] = error
            # Lets the event loop have the interpreter, which else waits 5 ms for it at each turn.
            time.sleep(0)  # noqa: TID251 - it waits for nothing
    return outcomes
