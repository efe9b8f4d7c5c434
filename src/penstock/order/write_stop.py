"""Stop what an agent orders while its replicas differ without a majority."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from penstock.model.errors import RetryableError

CommandT = TypeVar("CommandT")


class WriteStop(Generic[CommandT]):
    """Refuses all commands but those that are never stopped, while an error is set."""

    def __init__(self, is_never_stopped: Callable[[CommandT], bool]) -> None:
        self._is_never_stopped = is_never_stopped
        self.error: RetryableError | None = None
        """Why nothing may be written; None: it may."""

    def refusal(self, commands: Sequence[CommandT]) -> RetryableError | None:
        """Return why these must not be submitted now; None: they may be."""
        if self.error is None or all(map(self._is_never_stopped, commands)):
            return None
        return self.error
