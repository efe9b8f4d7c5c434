"""Runs a function of a test in a process of its own: `in_own_process`.

For a load of client libraries: a client whose cluster is gone may leave a thread and sockets, which
pytest, whose filter makes errors of warnings, would find in the next test.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable


def in_own_process(function: Callable[..., object], *arguments: object) -> None:
    """Run a function until it returns; what it prints comes out here.

    Args:
        function: of a module that can be imported by its name, which a test's can't.
        arguments: what can be pickled.
    Raises:
        AssertionError: it raised, and printed its traceback; or its process died.
    """
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_run, args=(function, arguments))
    process.start()
    try:
        process.join()
    finally:
        process.kill()
        process.join()
        status = process.exitcode
        process.close()
    assert status == 0, f"{function.__name__} ended with status {status}; it printed why above"


def _run(function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    status = 1
    try:
        function(*arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # A client library's thread that never ends would be waited for otherwise.
        os._exit(status)
