"""A backup under way as lines of JSON: how far it is, and at the end what it came to.

`{"done": BYTES, "total": BYTES}` now and then, then `{"manifest": {...}}` or `{"error": "..."}`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec

from penstock.log.backup import Progress
from penstock.model.errors import PenstockError

CONTENT_TYPE: Final = "application/x-ndjson"

_LINE_S: Final = 0.5

BackUp = Callable[[Progress], Awaitable[dict[str, Any]]]


async def backup_lines(back_up: BackUp) -> AsyncIterator[bytes]:
    """Run a backup and tell of it.

    Whoever stops reading cancels the backup, which then has no manifest.
    """
    far = (0, 0)

    def note(done: int, total: int) -> None:
        nonlocal far
        far = (done, total)

    async def run() -> dict[str, Any]:
        return await back_up(note)

    task = asyncio.get_running_loop().create_task(run(), name="backup")
    try:
        while not (await asyncio.wait([task], timeout=_LINE_S))[0]:
            yield _line({"done": far[0], "total": far[1]})
        try:
            yield _line({"manifest": task.result()})
        except PenstockError as error:
            yield _line({"error": str(error)})
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _line(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"
