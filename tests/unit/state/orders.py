"""What the tests of the order share: a clock and randomness of their own, and short commands."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.records.sums import pack_crcs
from penstock.state.commands import CommitRuns, CreateTopic, MovedRun, RunCommit, StoreSegment
from penstock.state.orders import LocalJournal, open_local_journal
from penstock.state.rows import StoredRun
from penstock.state.schema import FEATURE_LEVEL_MAX

TOPIC_ID = b"0123456789abcdef"
KEY = partition_key(TopicKey(1), 0)
PLAIN = (-1, -1, -1)


@dataclass
class TestClock:
    """Time that the test sets."""

    __test__ = False
    ms: int = 1_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


class CountingRandom:
    """Always new, always the same from the start."""

    def __init__(self) -> None:
        self._next = 0

    def token_bytes(self, count: int) -> bytes:
        self._next += 1
        return self._next.to_bytes(count, "big")

    def below(self, bound: int) -> int:
        self._next += 1
        return self._next % bound


def open_order(
    directory: Path, clock: TestClock | None = None, *, level: int = FEATURE_LEVEL_MAX
) -> LocalJournal:
    """Without syncs: power cuts are not the question here."""
    return open_local_journal(
        directory / "metadata.sqlite",
        clock=clock or TestClock(),
        random=CountingRandom(),
        fsync=False,
        level=level,
    )


def topic(name: str = "t", topic_id: bytes = TOPIC_ID, partitions: int = 2) -> CreateTopic:
    return CreateTopic(name=name, topic_id=topic_id, partitions=partitions)


def batch(
    count: int = 1, *, length: int = 100, newer: int = 0, producer: tuple[int, int, int] = PLAIN
) -> list[int]:
    """One batch's integers; `producer` is (id, epoch, base sequence)."""
    return [length, count, newer, *producer]


def commit(
    *batches: list[int],
    key: PartitionKey = KEY,
    position: int = 0,
    wal: int = 1,
    crcs: Sequence[int] = (),
) -> CommitRuns:
    flat = [value for one in batches for value in one]
    run = RunCommit(partition_key=key, position=position, batches=flat, crcs=pack_crcs(crcs))
    return CommitRuns(runs=[run], wal=wal)


def store(runs: list[StoredRun], *, object_key: str = "o1", position: int = 16) -> StoreSegment:
    """Runs of one partition, copied one behind the other."""
    return StoreSegment(
        object_key=object_key,
        object_bytes=1000,
        runs=[
            MovedRun(
                partition_key=runs[0].partition_key,
                position=position,
                runs=[
                    value
                    for run in runs
                    for value in (run.base_offset, run.generation, run.position, run.length)
                ],
            )
        ],
    )
