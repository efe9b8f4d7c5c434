"""The commit lane as an order for the flusher: object mode on an embedded server."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from penstock.log.ordering import Applied
from penstock.model.errors import RetryableError
from penstock.state.answers import AnyAnswer
from penstock.state.commands import AnyCommand

SubmitCommands = Callable[[Sequence[AnyCommand]], "asyncio.Future[list[AnyAnswer]]"]

_NOWHERE: Final = 0
"""The lane hands positions and changes to the log by itself."""


class LaneOrdering:
    """Implements `penstock.log.ordering.Submits`. Event loop only.

    One call is in the lane at a time: the lane may refuse one for a full disk and take the next,
    which must not overtake it. A lane's turn takes less than a millisecond.
    """

    def __init__(self, submit: SubmitCommands) -> None:
        self._submit = submit
        self._queue: deque[tuple[Sequence[AnyCommand], asyncio.Future[Applied]]] = deque()

    def submit(self, commands: Sequence[AnyCommand]) -> asyncio.Future[Applied]:
        """See `Submits`."""
        future: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        self._queue.append((commands, future))
        if len(self._queue) == 1:
            self._next()
        return future

    def _next(self) -> None:
        self._submit(self._queue[0][0]).add_done_callback(self._done)

    def _done(self, answered: asyncio.Future[list[AnyAnswer]]) -> None:
        _, future = self._queue.popleft()
        error = (
            RetryableError("append", "journal", "the server is shutting down")
            if answered.cancelled()
            else answered.exception()
        )
        if error is None:
            future.set_result(Applied(_NOWHERE, _NOWHERE, answered.result(), []))
            if self._queue:
                self._next()
            return
        behind = [waiting for _, waiting in self._queue]
        self._queue.clear()
        for one in (future, *behind):
            one.set_exception(error)
