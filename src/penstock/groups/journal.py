"""Journals the coordinator's commands, in tasks that outlive the clients' waiting.

A client that goes away in the middle must not leave memory and journal apart.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from penstock.groups.errors import GroupError
from penstock.model.errors import FencedError, PenstockError, RetryableError
from penstock.state.answers import AnyAnswer, Refusal, Refused
from penstock.state.commands import AnyCommand
from penstock.state.order_types import Committer
from penstock.system import background
from penstock.system.heard import Cause, heard

JOURNAL_TIMEOUT_S: Final = 30.0
"""How long a client waits for the journal; what it asked for may still be done after that."""
CLOSE_TIMEOUT_S: Final = 10.0

_T = TypeVar("_T")

logger = logging.getLogger(__name__)


class GroupJournal:
    """Journals the groups' commands, in the order in which they are given. Owns its tasks."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self.tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Wait for what is under way; what takes too long is given up."""
        if not self.tasks:
            return
        _, late = await asyncio.wait(self.tasks, timeout=CLOSE_TIMEOUT_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=CLOSE_TIMEOUT_S)

    def own(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> asyncio.Task[_T]:
        """Begin work now; it ends by itself, or with the coordinator."""
        task = background.start(background.GROUP_JOURNAL, work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def finish(self, task: asyncio.Task[_T]) -> _T | GroupError:
        """Wait for owned work, which goes on even if this client stops waiting."""
        done, _ = await asyncio.wait({task}, timeout=JOURNAL_TIMEOUT_S)
        # Work that was given up at the end is not its client's to be cancelled with.
        if not done or task.cancelled():
            return GroupError.COORDINATOR_NOT_AVAILABLE
        return task.result()

    async def commit(self, command: AnyCommand) -> AnyAnswer | GroupError:
        """Journal a command; its answer, or the error for the client."""
        answer = await self.ask(command)
        if isinstance(answer, Refused):
            logger.warning(
                "a group's command was refused: %s %s", answer.reason.name, answer.detail
            )
            return GroupError.UNKNOWN_SERVER_ERROR
        return answer

    async def ask(self, command: AnyCommand) -> AnyAnswer | GroupError:
        """Journal a command that may well be refused; its answer, or the error for the client."""
        try:
            (answer,) = await self._committer.commit([command])
        except PenstockError as error:
            heard(Cause.GROUP_JOURNAL, error, logger, "could not journal a group's command")
            return _journal_error(error)
        if isinstance(answer, Refused) and answer.reason is Refusal.STALE_SHARD:
            # At each hand-over: what was on its way goes to the next coordinator.
            logger.info("a group's command came after its shard had moved: %s", answer.detail)
            return GroupError.NOT_COORDINATOR
        return answer


def _journal_error(error: PenstockError) -> GroupError:
    if isinstance(error, FencedError):
        return GroupError.NOT_COORDINATOR
    if isinstance(error, RetryableError):
        return GroupError.COORDINATOR_NOT_AVAILABLE
    return GroupError.UNKNOWN_SERVER_ERROR
