"""An object's own index says whether a run lies where the state says.

A run that is too long to be compared with its sum before some of it is served may be another run,
and so may the batches before a fault in a run of any length: two objects may have changed places,
or an older object may lie under the key. The index shows that at once: it names topic id, partition
and offsets of each run, and has a CRC. It proves the bytes of its own version of the object, and no
others; an index that can't be read proves nothing.
"""

import enum
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from penstock.log.fetch.object_reads import ObjectReads
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.model.ids import PartitionKey, partition_of
from penstock.ports.objects import Versioned
from penstock.segment import FOOTER_BYTES, parse_footer, parse_index
from penstock.state.rows import StoredRun
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

_TAIL_BYTES: Final = 64 << 10
"""The bytes that are read first: the footer, and mostly the whole index."""
_KNOWN_MAX: Final = 10_000


class Proof(enum.Enum):
    """The evidence of an object's index about a run."""

    NAMED = "named"
    UNNAMED = "unnamed"
    """It names no such run there, or it can't be read."""
    OTHER_VERSION = "other version"
    """It is that of another version of the object than the bytes that it should prove."""


class PlacedRuns:
    """Event loop only.

    Args:
        topic_id_of: of a partition's topic; None: it is gone.
        now_s: the time by which what was looked at ages.
        again_s: after how long an object is looked at again.
    """

    def __init__(
        self,
        reads: ObjectReads,
        *,
        topic_id_of: Callable[[PartitionKey], bytes | None],
        now_s: Callable[[], float],
        again_s: float,
    ) -> None:
        self._reads = reads
        self._topic_id_of = topic_id_of
        self._now_s = now_s
        self._again_s = again_s
        self._known: OrderedDict[tuple[str, int], tuple[float, str | None]] = OrderedDict()

    def is_known(self, run: StoredRun, version: str | None) -> bool:
        """Return whether the run was proven in that version of its object, not too long ago."""
        found = self._known.get((run.object_key, run.position))
        return found is not None and found[1] == version and self._now_s() < found[0]

    def know(self, run: StoredRun, version: str | None) -> None:
        """The run was proven in that version of its object."""
        name = (run.object_key, run.position)
        self._known[name] = (self._now_s() + self._again_s, version)
        self._known.move_to_end(name)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    async def prove(self, run: StoredRun, version: str | None) -> Proof:
        """Look whether the index of the run's object names the run. The store itself is asked: an
        index from a peer may be that of the bytes which it has kept.

        Args:
            version: of the bytes that are to be proven.

        Raises:
            RetryableError: the store is away.
        """
        if self.is_known(run, version):
            return Proof.NAMED
        topic_id = self._topic_id_of(run.partition_key)
        try:
            proof = (
                Proof.UNNAMED
                if topic_id is None
                else await self._look(run, bytes(topic_id), version)
            )
        except (CorruptDataError, NotFoundError) as error:
            # What it means that the object is gone, the next read of it says.
            heard(Cause.SEGMENT_INDEX, error, logger, f"{run.object_key} is read without its index")
            proof = Proof.UNNAMED
        if proof is Proof.NAMED:
            self.know(run, version)
        return proof

    async def _look(self, run: StoredRun, topic_id: bytes, version: str | None) -> Proof:
        key, size_bytes = run.object_key, run.object_bytes
        start = max(0, size_bytes - _TAIL_BYTES)
        found = await self._reads.get_directly(key, start, size_bytes)
        if found.version != version:
            return Proof.OTHER_VERSION
        tail = bytes(found.data)
        footer = parse_footer(tail[-FOOTER_BYTES:], size_bytes=size_bytes, subject=key)
        at, end = footer.index_position, footer.index_position + footer.index_length
        block = Versioned(tail[at - start : end - start], version)
        if at < start:
            block = await self._reads.get_directly(key, at, end)
            if block.version != version:
                return Proof.OTHER_VERSION
        wanted = (topic_id, partition_of(run.partition_key))
        is_named = any(
            (row.topic_id, row.partition) == wanted
            and row.position <= run.position
            and run.position + run.length <= row.position + row.length
            # Rows of raw objects count offsets from their run's first record.
            and (
                run.raw or (row.base_offset <= run.base_offset and run.end_offset <= row.end_offset)
            )
            for row in parse_index(bytes(block.data), footer, subject=key)
        )
        return Proof.NAMED if is_named else Proof.UNNAMED
