"""Before a commit names objects, the agent looks up in the objects what the job claims of them.

If an object were missing, shorter, or held other runs, records would be lost. These checks stop a
mistaken executor, and a put that was never acknowledged. The CRCs of batches are checked by the
job.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.app.api.sources import ApiRefusedError, PipelineSources
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.pipeline.api_messages import OutputObject
from penstock.segment import FOOTER_BYTES, Footer, IndexedRun, parse_footer, parse_index

AT_ONCE: Final = 8
_TAIL_BYTES: Final = 64 << 10
BAD_OBJECT: Final = "bad_object"


class Claim(NamedTuple):
    """A claim describes one run in the commit's object number `object`. -1: not claimed."""

    object: int
    topic_id: bytes
    partition: int
    position: int
    length: int
    batch_count: int
    max_timestamp: int
    base_offset: int = -1
    end_offset: int = -1
    record_count: int = -1


async def check_objects(
    sources: PipelineSources,
    objects: Sequence[OutputObject],
    claims: Iterable[Claim],
    *,
    offsets_final: bool,
) -> None:
    """
    Args:
        offsets_final: True: the offsets in the objects must be final; False: they must not be.

    Raises:
        ApiRefusedError: an object is missing, or differs from the claims.
        RetryableError: the store doesn't answer.
    """
    by_object: dict[int, list[Claim]] = defaultdict(list)
    for claim in claims:
        if not 0 <= claim.object < len(objects):
            raise _bad(
                "commit",
                f"a run names object number {claim.object}, the commit has {len(objects)}",
            )
        by_object[claim.object].append(claim)
    turn = asyncio.Semaphore(AT_ONCE)

    async def check(index: int, listed: OutputObject) -> None:
        async with turn:
            footer, runs = await _listed_index(sources, listed)
        if footer.offsets_final != offsets_final:
            state = "final" if footer.offsets_final else "not final"
            raise _bad(listed.key, f"its offsets are {state}")
        by_position = {run.position: run for run in runs}
        for claim in by_object[index]:
            difference = _difference(claim, by_position.get(claim.position))
            if difference:
                raise _bad(listed.key, difference)

    checks = [asyncio.ensure_future(check(*each)) for each in enumerate(objects)]
    try:
        await asyncio.gather(*checks)
    finally:
        for each in checks:
            each.cancel()
        await asyncio.gather(*checks, return_exceptions=True)


async def index_of(
    sources: PipelineSources, key: str, size_bytes: int
) -> tuple[Footer, tuple[IndexedRun, ...]]:
    """Read the footer and the runs of an object.

    Raises:
        NotFoundError: there is no such object.
        CorruptDataError: it is not a segment.
        RetryableError: the store doesn't answer.
    """
    store = sources.store
    if size_bytes < FOOTER_BYTES:
        raise CorruptDataError("read index", key, f"{size_bytes} bytes are less than a footer")
    tail_from = max(0, size_bytes - _TAIL_BYTES)
    tail = bytes(await store.get_range(key, tail_from, size_bytes))
    footer = parse_footer(tail, size_bytes=size_bytes, subject=key)
    start = footer.index_position
    end = start + footer.index_length
    block = (
        tail[start - tail_from : end - tail_from]
        if start >= tail_from
        else bytes(await store.get_range(key, start, end))
    )
    runs = await asyncio.get_running_loop().run_in_executor(
        sources.pool, lambda: parse_index(block, footer, subject=key)
    )
    return footer, runs


async def _listed_index(
    sources: PipelineSources, listed: OutputObject
) -> tuple[Footer, tuple[IndexedRun, ...]]:
    key, size_bytes = listed.key, listed.size_bytes
    try:
        found_bytes = await sources.store.size(key)
        if found_bytes != size_bytes or size_bytes < FOOTER_BYTES:
            raise _bad(key, f"it has {found_bytes} bytes, the commit says {size_bytes}")
        return await index_of(sources, key, size_bytes)
    except NotFoundError as error:
        raise _bad(key, "there is no such object") from error
    except CorruptDataError as error:
        raise _bad(key, str(error)) from error


def _difference(claim: Claim, run: IndexedRun | None) -> str:
    """Say how a run differs from the claim; "": it doesn't."""
    if run is None:
        return f"no run begins at byte {claim.position}"
    for name in Claim._fields[1:]:
        said, found = getattr(claim, name), getattr(run, name)
        if said not in {found, -1}:
            shown = (said.hex(), found.hex()) if isinstance(said, bytes) else (said, found)
            return f"{name} of the run at byte {claim.position} is {shown[1]}, not {shown[0]}"
    return ""


def _bad(subject: str, detail: str) -> ApiRefusedError:
    return ApiRefusedError("commit", subject, f"{subject}: {detail}", reason=BAD_OBJECT)
