"""A request whose batches take several append paths: one answer for all parts. Event loop only."""

from collections.abc import Callable, Sequence

from penstock.log.append.plan import PartitionAppend
from penstock.model.errors import PenstockError


class Joint:
    """Collects the outcomes of a request's parts.

    Where some parts failed and others didn't, the appends of the former carry the error and the
    request is answered without one: the latter's batches are stored.

    Args:
        parts: how many there are.
        done: of the whole request.
    """

    def __init__(self, parts: int, done: Callable[[PenstockError | None], None]) -> None:
        self._parts = parts
        self._left = parts
        self._done = done
        self._errors: list[PenstockError] = []

    def part(self, appends: Sequence[PartitionAppend]) -> Callable[[PenstockError | None], None]:
        """Return the callback that takes the outcome of one part."""

        def done(error: PenstockError | None) -> None:
            if error is not None:
                self._errors.append(error)
                for append in appends:
                    append.error = error
            self._left -= 1
            if not self._left:
                self._done(self._errors[0] if len(self._errors) == self._parts else None)

        return done
