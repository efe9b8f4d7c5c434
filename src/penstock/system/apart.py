"""Runs one of this program's modules in a niced process of its own, for what takes the interpreter
for long.

The module's `main` calls `answer_apart`, which says on standard output what came of its work, in
JSON: its result, or an error of Penstock's, which `run_apart` raises as if the work had been done
here.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from penstock.model.errors import (
    CorruptDataError,
    NotFoundError,
    PenstockError,
    RetryableError,
    StorageFullError,
)

T = TypeVar("T")

_FAILED: Final = 3
"""The exit status of a module that says an error."""
_NICENESS: Final = 10
_ERRORS: Final[dict[str, type[PenstockError]]] = {
    kind.__name__: kind
    for kind in (CorruptDataError, NotFoundError, RetryableError, StorageFullError)
}


class _Failure(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    operation: str
    subject: str
    detail: str
    hint: str


def run_apart(
    module: str,
    arguments: Sequence[str],
    answer: type[T],
    *,
    operation: str,
    subject: str,
    timeout_s: float,
) -> T:
    """Run a module until it ends; blocking.

    Args:
        module: its name, for example `penstock.replica.pinned`.
        answer: what its work gives, a type that msgspec reads from JSON.
        operation: what it does, and `subject`, to what: for errors.
    Raises:
        RetryableError: it could not be started, was ended, or took too long; or its work raised
            an error of another kind than the following.
        CorruptDataError, NotFoundError, StorageFullError: its work raised one.
    """
    try:
        ended = subprocess.run(  # noqa: S603 - this very program, with paths of ours
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RetryableError(operation, subject, str(error)) from error
    if ended.returncode == _FAILED:
        failure = msgspec.json.decode(ended.stdout, type=_Failure)
        kind = _ERRORS.get(failure.kind, RetryableError)
        raise kind(failure.operation, failure.subject, failure.detail, failure.hint)
    if ended.returncode:
        said = ended.stderr.decode("utf-8", "replace").strip()[-300:]
        raise RetryableError(
            operation, subject, f"its process ended with {ended.returncode}: {said}"
        )
    return msgspec.json.decode(ended.stdout, type=answer)


def answer_apart(work: Callable[[], object]) -> int:
    """Do the work of a module that runs apart, and say what came of it; the exit status."""
    # What serves clients goes first.
    os.nice(_NICENESS)
    answer: object
    status = 0
    try:
        answer = work()
    except PenstockError as error:
        kinds = (kind.__name__ for kind in type(error).__mro__)
        answer = _Failure(
            kind=next((kind for kind in kinds if kind in _ERRORS), ""),
            operation=error.operation,
            subject=error.subject,
            detail=error.detail,
            hint=error.hint,
        )
        status = _FAILED
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return status
