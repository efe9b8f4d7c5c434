"""Long work is answered by lines of JSON: its progress, and at the end its result.

`{"done": BYTES, "total": BYTES}` comes at intervals, then `{RESULT: {...}}` or `{"error": "..."}`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec

from penstock.model.errors import PenstockError

CONTENT_TYPE: Final = "application/x-ndjson"

_LINE_S: Final = 0.5

Progress = Callable[[int, int], None]
"""A function that is called with the bytes done so far and the bytes in all."""

Work = Callable[[Progress], Awaitable[dict[str, object]]]


async def progress_lines(work: Work, *, result: str) -> AsyncIterator[bytes]:
    """Do the work, and yield lines about its progress and result.

    A client that stops reading cancels the work.

    Args:
        result: the last line's key for the work's result.
    """
    far = (0, 0)

    def note(done: int, total: int) -> None:
        nonlocal far
        far = (done, total)

    async def run() -> dict[str, object]:
        return await work(note)

    task = asyncio.get_running_loop().create_task(run(), name=f"work for a {result}")
    try:
        while not (await asyncio.wait([task], timeout=_LINE_S))[0]:
            yield _line({"done": far[0], "total": far[1]})
        try:
            yield _line({result: task.result()})
        except PenstockError as error:
            yield _line({"error": str(error)})
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _line(value: dict[str, object]) -> bytes:
    return msgspec.json.encode(value) + b"\n"
