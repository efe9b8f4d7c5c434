"""A command that waits for a server says so on standard error, a terminal or not."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

TELL_AFTER_S: Final = 3.0
"""An answer that takes longer, in seconds, is worth a line."""


@contextmanager
def notice(address: str, wait_s: float) -> Iterator[None]:
    """Write a line if the work inside takes long. Nothing is written where the work ends soon, or
    would be given up soon.

    Args:
        address: of the server that is to answer.
        wait_s: how long the answer is waited for.
    """
    if wait_s <= TELL_AFTER_S:
        yield
        return
    line = (
        f"penstock: no answer from {address} in {TELL_AFTER_S:g} s; "
        f"waiting until {wait_s:g} s have passed"
    )
    # Blocking calls of sockets and of urllib can't be asked how long they have waited.
    timer = threading.Timer(TELL_AFTER_S, click.echo, (line,), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
