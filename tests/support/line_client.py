"""Leads a Kafka client of another language by lines: the parent's end of a small protocol.

A program is started as `PROGRAM produce BOOTSTRAP TOPIC` or `PROGRAM member BOOTSTRAP TOPIC GROUP`.
The end of its input ends it; a producer flushes first, a member leaves its group. A line in is an
order, a line out one JSON object:

| kind | order | answer |
| --- | --- | --- |
| produce | `PARTITION VALUE`, without spaces inside | `{value, offset, error}`, in any order |
| member | `poll MS` | `{assignments, records: [{partition, offset, value}], error}` |
| member | `commit`: all that was polled | `{offsets: {PARTITION: OFFSET}, error}` |
| member | `committed`: what the coordinator has | `{offsets: {PARTITION: OFFSET}, error}` |

A member's orders are answered one after the other, so the parent's clock times each from outside.
`error` is empty where nothing went wrong; `assignments` counts those so far, since records are in
order within one only.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

END_SECONDS_MAX = 80.0
"""A producer may flush for a minute."""


class LineClientEndedError(Exception):
    """The program ended by itself."""


@dataclass(frozen=True, kw_only=True)
class LineProgram:
    """A client library, and the command of the program that uses it."""

    library: str
    command: tuple[str, ...]


class LineClient:
    """One process. One thread tells, one reads; they may be two."""

    def __init__(self, program: LineProgram, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*program.command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )

    def tell(self, line: str) -> None:
        """Hand it an order. Raises: LineClientEndedError."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
        except (BrokenPipeError, ValueError) as error:
            raise LineClientEndedError from error

    def answers(self) -> Iterator[dict[str, Any]]:
        """What it says, until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def ask(self, line: str) -> dict[str, Any]:
        """Hand it an order and wait for the answer. Raises: LineClientEndedError."""
        self.tell(line)
        for answer in self.answers():
            return answer
        raise LineClientEndedError

    def close_input(self) -> None:
        """Let it end in good order; its last answers are still to be read."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def end(self) -> int:
        """End it, in good order if it does so in time; its exit status."""
        self.close_input()
        try:
            status = self.process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status
