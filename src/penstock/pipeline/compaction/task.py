"""Running a compaction item where its engine runs it: a thread, a process, an executor."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from threading import Lock, local
from typing import Final

from msgspec import Struct
from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.compaction.items import Item, ItemDone, ItemStore, JoinItem
from penstock.pipeline.compaction.join import Arena, Merge, join_runs
from penstock.pipeline.objects import ObjectAccess
from penstock.ports.random import Random
from penstock.segment import job_object_key
from penstock.system.randomness import SystemRandom

_NAME_BYTES: Final = 16


class ItemGone(Struct, frozen=True, kw_only=True):
    """An input was replaced and deleted meanwhile: there is nothing to do any more."""

    detail: str


class ItemFailed(Struct, frozen=True, kw_only=True):
    """An input is damaged, or a package is missing. The inputs stay, and the other items go on."""

    detail: str


Outcome = ItemDone | ItemGone | ItemFailed


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """The task that an engine runs: picklable, and without a secret."""

    options: ClientOptions
    job: int

    def __call__(self, item: Item) -> Outcome:
        """Run one attempt of an item. Raises: RetryableError."""
        store = AttemptStore(ACCESSES.get(self.options), job=self.job, random=SystemRandom())
        try:
            return run_item(item, store)
        except NotFoundError as error:
            return ItemGone(detail=str(error))
        except CorruptDataError as error:
            return ItemFailed(detail=str(error))
        except ModuleNotFoundError as error:
            detail = f"cleaning by key needs {error.name}: pip install penstock[compaction]"
            return ItemFailed(detail=detail)


def run_item(item: Item, store: ItemStore) -> ItemDone:
    """Run an item of either kind."""
    if isinstance(item, JoinItem):
        wants_merging = any(partition.merging is not None for partition in item.partitions)
        return join_runs(item, store, _arena(), _merge() if wants_merging else None)
    # Its kernels take a while to load, and joining needs none.
    from penstock.pipeline.compaction.keyed import clean_partition

    return clean_partition(item, store)


_LOCAL: Final = local()


def _arena() -> Arena:
    """The arena of this thread, kept for its next item."""
    found: Arena | None = getattr(_LOCAL, "arena", None)
    if found is None:
        found = _LOCAL.arena = Arena()
    return found


def _merge() -> Merge | None:
    """The merger of this thread, kept for its next item. None: without numba batches are
    copied, which is slower to read and never wrong."""
    if find_spec("numba") is None:
        return None
    from penstock.pipeline.compaction.merge import PartitionMerger

    found: Merge | None = getattr(_LOCAL, "merge", None)
    if found is None:
        found = _LOCAL.merge = PartitionMerger()
    return found


class AttemptStore:
    """`penstock.pipeline.compaction.items.ItemStore` of one attempt: each object gets a random
    name, so that a retried or speculative attempt never meets its twin."""

    def __init__(self, access: ObjectAccess, *, job: int, random: Random) -> None:
        self._access = access
        self._job = job
        self._random = random

    def get_range(self, key: str, start: int, end: int, *, origin: str = "") -> Buffer:
        """See `ItemStore`."""
        return self._access.get_range(key, start, end, origin=origin)

    def read_into(self, space: memoryview, ranges: Sequence[tuple[str, int, int, str]]) -> None:
        """See `ItemStore`."""
        self._access.read_into(space, ranges)

    def put(self, parts: Sequence[Buffer]) -> str:
        """See `ItemStore`."""
        key = job_object_key(job=self._job, name=self._random.token_bytes(_NAME_BYTES).hex())
        self._access.put(key, parts)
        return key

    def token_bytes(self, count: int) -> bytes:
        """See `ItemStore`."""
        return self._random.token_bytes(count)


class Accesses:
    """Connections that the items of a process share, whatever job they are of."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: dict[ClientOptions, ObjectAccess] = {}
        self._drivers: Counter[ClientOptions] = Counter()

    def get(self, options: ClientOptions) -> ObjectAccess:
        """The access for an API, opened once."""
        with self._lock:
            found = self._open.get(options)
            if found is None:
                found = self._open[options] = ObjectAccess(PipelineClient(options))
            return found

    @contextmanager
    def held(self, options: ClientOptions) -> Iterator[None]:
        """A driver of this process has items run; what they opened here is closed after the last
        such driver. In a process that only runs items it stays for the next ones."""
        with self._lock:
            self._drivers[options] += 1
        try:
            yield
        finally:
            with self._lock:
                self._drivers[options] -= 1
                over = None if self._drivers[options] else self._open.pop(options, None)
            if over is not None:
                over.close()


ACCESSES: Final = Accesses()
