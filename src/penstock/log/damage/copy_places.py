"""All places in which a log looks for copies of its damaged runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from functools import partial

from penstock.log.damage.copy_sources import (
    INDEXES_MAX,
    CopySource,
    MemorySource,
    ObjectSource,
    segments_of,
)
from penstock.log.damage.wal_copies import WalSource
from penstock.log.fetch.blocks import BlockCache
from penstock.log.fetch.tail import TailCache
from penstock.model.ids import PartitionKey
from penstock.objects.opening import open_store
from penstock.ports.objects import ObjectStore
from penstock.state.read.queries import Queries
from penstock.wal import WalReader

_JOURNAL_WAL = 0
"""The key of the WAL whose frames carry the journal's entries."""


def copy_sources(
    *,
    tail: TailCache,
    blocks: BlockCache,
    block_bytes: int,
    store: ObjectStore,
    wals: Mapping[int, WalReader],
    url: str,
    queries: Callable[[], Queries],
    pool: Executor,
    topic_id_of: Callable[[PartitionKey], bytes | None],
) -> list[CopySource]:
    """The places, the nearest first.

    Args:
        url: of an operator's directory or bucket; "": none.

    Raises:
        InvalidRequestError: a URL that no store understands.
    """

    async def kept() -> AsyncIterator[str]:
        find = partial(_kept_objects, queries)
        for key in await asyncio.get_running_loop().run_in_executor(pool, find):
            yield key

    sources: list[CopySource] = [
        MemorySource(tail=tail, blocks=blocks, block_bytes=block_bytes, store=store)
    ]
    journal = wals.get(_JOURNAL_WAL)
    if journal is not None:
        sources.append(WalSource(journal.device, reader_of=wals.get, pool=pool))
    sources.append(
        ObjectSource(
            store,
            keys=kept,
            topic_id_of=topic_id_of,
            place="objects that nothing names any more",
            same_keys=False,
        )
    )
    if url:
        other = open_store(url, executor=pool)
        sources.append(
            ObjectSource(
                other,
                keys=partial(segments_of, other),
                topic_id_of=topic_id_of,
                place=url,
                same_keys=True,
            )
        )
    return sources


def _kept_objects(queries: Callable[[], Queries]) -> list[str]:
    return queries().kept_objects(limit=INDEXES_MAX)
