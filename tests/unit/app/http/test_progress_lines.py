"""Lines of long work: how far it is, what came of it, and its end when nobody reads on."""

import asyncio
import json
from typing import Any

from penstock.app.http.progress_lines import Progress, progress_lines
from penstock.model.errors import ConflictError


async def test_the_last_line_holds_the_manifest() -> None:
    async def back_up(progress: Progress) -> dict[str, Any]:
        progress(1, 2)
        return {"topics": 3}

    assert ([json.loads(line) async for line in progress_lines(back_up, result="manifest")]) == [
        {"manifest": {"topics": 3}}
    ]


async def test_a_slow_backup_says_how_far_it_is() -> None:
    go_on = asyncio.Event()

    async def back_up(progress: Progress) -> dict[str, Any]:
        progress(5, 10)
        await go_on.wait()
        return {}

    lines = progress_lines(back_up, result="manifest")
    assert json.loads(await anext(lines)) == {"done": 5, "total": 10}
    go_on.set()
    assert json.loads(await anext(lines)) == {"manifest": {}}


async def test_an_error_is_the_last_line() -> None:
    async def back_up(_: Progress) -> dict[str, Any]:
        raise ConflictError("back up", "x", "there is one")

    assert ([json.loads(line) async for line in progress_lines(back_up, result="manifest")]) == [
        {"error": "back up x: there is one"}
    ]


def test_a_reader_that_goes_away_ends_the_backup() -> None:
    async def run() -> bool:
        cancelled = False

        async def back_up(_: Progress) -> dict[str, Any]:
            nonlocal cancelled
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled = True
                raise
            return {}

        lines = progress_lines(back_up, result="manifest")
        await anext(lines)
        await lines.aclose()  # type: ignore[attr-defined]
        return cancelled

    assert asyncio.run(run())
