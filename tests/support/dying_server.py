"""A server that kills itself (SIGKILL) at a put of a segment: run as a program, with the arguments
of `penstock`.

Environment: `DIES_AT_PUT`, which put of a segment by this process, from 1 on; `DIES`: `before` the
object is there, or `after`, when it is there and the journal has not heard of it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

from penstock.cli import main
from penstock.objects.bucket import BucketStore
from penstock.objects.local import LocalStore
from penstock.segment.keys import SEGMENTS_PREFIX
from support.server import REPOSITORY

LAUNCHER = ("-m", "support.dying_server")
"""Of a `support.server.ServerProcess`."""


def dying(when: str, number: int) -> dict[str, str]:
    """Variables of a server that dies `before` or `after` its put of that number."""
    return {
        "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY / 'tests'}",
        "DIES_AT_PUT": str(number),
        "DIES": when,
    }


class Death:
    """Counts the puts of a process, and ends it at one."""

    def __init__(self, *, at_put: int, when: str) -> None:
        self._left = at_put
        self._when = when
        self._lock = threading.Lock()

    def wrap(self, store: type[Any]) -> None:
        """Have a kind of store end the process."""
        put = store.put

        async def dying(
            self: Any, key: str, parts: Sequence[Any], *, if_absent: bool = False
        ) -> None:
            is_last = key.startswith(SEGMENTS_PREFIX) and death.counts_down()
            if is_last and death._when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                await put(self, key, parts, if_absent=if_absent)
            except BaseException:
                if is_last:
                    # The next one is: a put that failed is tried again.
                    death.counts_again()
                raise
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)

        death = self
        store.put = dying

    def counts_down(self) -> bool:
        """Whether it is the one."""
        with self._lock:
            self._left -= 1
            return self._left == 0

    def counts_again(self) -> None:
        """Take the next put for the one."""
        with self._lock:
            self._left = 1


if __name__ == "__main__":
    death = Death(at_put=int(os.environ["DIES_AT_PUT"]), when=os.environ["DIES"])
    for kind in (LocalStore, BucketStore):
        death.wrap(kind)
    main()
