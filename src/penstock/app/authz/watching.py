"""Setting a policy again whenever its file changes, for development."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from penstock.model.errors import PenstockError
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.3


Stamp = tuple[int, int, int]
"""A file's time of change, size and number; each change changes one of them."""


async def watch(path: Path, since: Stamp | None, changed: Callable[[], Awaitable[None]]) -> None:
    """Call `changed` after each change of a file, until cancelled; what it raises is logged.

    The file is looked at a few times a second: editors write it in many ways, and file systems of
    containers report nothing.

    Args:
        since: the file's stamp before it was read last.
    """
    last = since
    while True:
        await _pause(LOOK_S)
        found = file_stamp(path)
        if found == last or found is None:
            continue
        last = found
        try:
            await changed()
            logger.info("set the policy of %s", path)
        except PenstockError as error:
            heard(Cause.AUTHZ_POLICY, error, logger, "the policy before stays")


def file_stamp(path: Path) -> Stamp | None:
    """Give the stamp of a file; None if it isn't there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


async def _pause(seconds: float) -> None:
    waited = asyncio.get_running_loop().create_future()
    timer = asyncio.get_running_loop().call_later(seconds, waited.set_result, None)
    try:
        await waited
    finally:
        timer.cancel()
