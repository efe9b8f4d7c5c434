"""A process that serves: its event loop, its interpreter, and its first screen."""

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

INTERRUPTED_EXIT_STATUS = 130


def runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Return what runs a coroutine on a new event loop."""
    try:
        import uvloop
    except ImportError:  # uvloop lacks wheels for some platforms; it differs in speed alone
        return asyncio.run
    return uvloop.run


def hear(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:  # noqa: ARG001
    """Count what asyncio would only log: a failed callback, a task whose error was never read."""
    error = context.get("exception")
    if not isinstance(error, BaseException):
        error = str(context.get("handle", ""))
    heard(Cause.EVENT_LOOP, error, logger, str(context["message"]), logging.ERROR)


def tune_interpreter() -> None:
    """Tune the interpreter for a server's work; each setting was measured."""
    # Modules that are loaded by now stay loaded, so collections needn't look through them. Most
    # other objects are freed by counting references; cycles are few, so they are looked for seldom.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    # After a sync the commit lane's thread needs the interpreter's lock, which the event loop holds
    # for up to this interval. The default of 5 ms is many times what a commit takes.
    sys.setswitchinterval(0.0005)


def say(text: str) -> None:
    """Write a server's first screen."""
    # The program that started the server may have closed its output: the server still serves.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(text)
        sys.stdout.flush()
