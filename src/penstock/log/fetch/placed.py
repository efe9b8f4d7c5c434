"""Whether an object's own index names a run where the state does.

A run that is too long to be compared with its sum before any of it is served may be another's:
two objects that changed places, or an older object under the key. The index says so at once: it
names topic id, partition and offsets of each run, and has a CRC. An index that can't be read
says nothing: the batches are checked for themselves.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from penstock.metadata.rows import StoredRun
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.model.ids import PartitionKey, partition_of
from penstock.ports.objects import ObjectStore
from penstock.segment import FOOTER_BYTES, parse_footer, parse_index

_TAIL_BYTES: Final = 64 << 10
"""What is read first: the footer, and mostly the whole index."""
_KNOWN_MAX: Final = 10_000


class PlacedRuns:
    """Event loop only.

    Args:
        topic_id_of: of a partition's topic; None: it is gone.
        now_s: the time by which what was looked at ages.
        again_s: after how long an object is looked at again.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        topic_id_of: Callable[[PartitionKey], bytes | None],
        now_s: Callable[[], float],
        again_s: float,
    ) -> None:
        self._store = store
        self._topic_id_of = topic_id_of
        self._now_s = now_s
        self._again_s = again_s
        self._known: OrderedDict[tuple[str, int], float] = OrderedDict()

    def is_known(self, run: StoredRun) -> bool:
        """Whether the index was found to name the run, not too long ago."""
        until_s = self._known.get((run.object_key, run.position))
        return until_s is not None and self._now_s() < until_s

    async def names(self, run: StoredRun) -> bool:
        """Whether the index of the run's object names the run there, or can't be read.

        Raises:
            RetryableError: the store is away.
        """
        if self.is_known(run):
            return True
        topic_id = self._topic_id_of(run.partition_key)
        try:
            if topic_id is not None and not await self._is_named(run, bytes(topic_id)):
                return False
        except (CorruptDataError, NotFoundError):
            # Damage to the index costs nothing but this proof, and an object that is gone while
            # its blocks are here is missed by the next read of it.
            pass
        self._known[run.object_key, run.position] = self._now_s() + self._again_s
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        return True

    async def _is_named(self, run: StoredRun, topic_id: bytes) -> bool:
        key, size_bytes = run.object_key, run.object_bytes
        start = max(0, size_bytes - _TAIL_BYTES)
        tail = bytes(await self._store.get_range(key, start, size_bytes))
        footer = parse_footer(tail[-FOOTER_BYTES:], size_bytes=size_bytes, subject=key)
        at, end = footer.index_position, footer.index_position + footer.index_length
        block = (
            tail[at - start : end - start]
            if at >= start
            else bytes(await self._store.get_range(key, at, end))
        )
        wanted = (topic_id, partition_of(run.partition_key))
        return any(
            (row.topic_id, row.partition) == wanted
            and row.position <= run.position
            and run.position + run.length <= row.position + row.length
            and row.base_offset <= run.base_offset
            and run.end_offset <= row.end_offset
            for row in parse_index(block, footer, subject=key)
        )
