"""One partition's runs and objects in memory, as the journal and a store have them: for tests of
what cleans them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from typing_extensions import Buffer

from penstock.model.errors import NotFoundError
from penstock.pipeline.api_messages import PartitionState, RunPage, TopicState
from penstock.pipeline.compaction.items import ItemDone, KeyedItem
from penstock.records.batch import DELETE_HORIZON, HEADER, patch_base_offset, stored_header
from penstock.records.decode import decode_batch
from penstock.records.sums import SUM_MASK, partition_seed, run_sum
from penstock.segment import FOOTER_BYTES, check_header, parse_footer, parse_index
from support.kafka_cleaner_model import ModelBatch, ModelRecord

TOPIC_ID = "0123456789abcdef0123456789abcdef"
SEED = partition_seed(bytes.fromhex(TOPIC_ID), 0)


class MemoryStore:
    """Objects in a dict. Implements `penstock.pipeline.compaction.items.ItemStore`."""

    def __init__(self, random: Random) -> None:
        self.objects: dict[str, bytes] = {}
        self.read_bytes = 0
        self.largest_read = 0
        self._random = random

    def get_range(self, key: str, start: int, end: int, *, origin: str = "") -> Buffer:
        assert origin == ""
        found = self.objects.get(key)
        if found is None:
            raise NotFoundError("read", key, "no such object")
        self.read_bytes += end - start
        self.largest_read = max(self.largest_read, end - start)
        return found[start:end]

    def read_into(self, space: memoryview, ranges: Sequence[tuple[str, int, int, str]]) -> None:
        at = 0
        for key, start, end, origin in ranges:
            body = self.get_range(key, start, end, origin=origin)
            size = memoryview(body).nbytes
            space[at : at + size] = body
            at += size
        assert at == space.nbytes

    def put(self, parts: Sequence[Buffer]) -> str:
        key = f"object-{len(self.objects)}-{self._random.randrange(1 << 32)}"
        self.objects[key] = b"".join(parts)
        return key

    def token_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


@dataclass
class Run:
    """A row of the state; `key` "": in a WAL, whose bytes are `wal`."""

    base_offset: int
    end_offset: int
    key: str
    position: int
    length: int
    newest: int
    batches: int
    raw: bool = False
    wal: bytes = b""
    sum: int = 0


@dataclass
class CleanedPartition:
    """The partition; what commands would do to it are methods."""

    store: MemoryStore
    random: Random
    runs: list[Run] = field(default_factory=list)
    log_start: int = 0
    clean_end: int = -1
    configs: dict[str, str] = field(default_factory=dict)
    stable_end: int | None = None
    """The last stable offset; None: nothing is open."""

    @property
    def high_watermark(self) -> int:
        return self.runs[-1].end_offset if self.runs else 0

    def append(self, batch: bytearray) -> int:
        """A batch comes and lies in the WAL; its base offset."""
        base_offset = self.high_watermark
        patch_base_offset(memoryview(batch), base_offset, 0)
        header = stored_header(batch, 0)
        self.runs.append(
            Run(
                base_offset,
                header.end_offset,
                "",
                0,
                len(batch),
                header.max_timestamp,
                1,
                wal=bytes(batch),
                sum=run_sum(memoryview(batch), SEED),
            )
        )
        return base_offset

    def upload(self) -> None:
        """The WAL's runs move to an object, some of them joined; raw ones or final ones."""
        moved = [run for run in self.runs if not run.key]
        if not moved:
            return
        raw = self.random.random() < 0.5
        data = b"some other partition's bytes" * self.random.randrange(3)
        rows: list[Run] = []
        for run in moved:
            body = bytearray(run.wal)
            if raw:
                body[:8] = self.random.randbytes(8)
                body[12:16] = self.random.randbytes(4)
            if rows and self.random.random() < 0.6:
                before = rows[-1]
                before.end_offset, before.length = run.end_offset, before.length + len(body)
                before.newest, before.batches = max(before.newest, run.newest), before.batches + 1
                before.sum = (before.sum + run.sum) & SUM_MASK
            else:
                rows.append(
                    Run(
                        run.base_offset,
                        run.end_offset,
                        "?",
                        len(data),
                        len(body),
                        run.newest,
                        1,
                        raw,
                        sum=run.sum,
                    )
                )
            data += bytes(body)
        key = self.store.put([data + b"the rest"])
        for row in rows:
            row.key = key
        self.runs = [run for run in self.runs if run.key] + rows

    def trim(self, log_start: int) -> None:
        """Raise the log's start."""
        self.log_start = max(self.log_start, log_start)
        self.runs = [run for run in self.runs if run.end_offset > self.log_start]

    def topic(self) -> TopicState:
        return TopicState(
            name="t",
            topic_id=TOPIC_ID,
            configs={"cleanup.policy": "compact", **self.configs},
            partitions=[
                PartitionState(
                    log_start=self.log_start,
                    high_watermark=self.high_watermark
                    if self.stable_end is None
                    else self.stable_end,
                    size_bytes=sum(run.length for run in self.runs),
                    clean_end=self.clean_end,
                )
            ],
        )

    def page(self) -> RunPage:
        """The listing."""
        keys = sorted({run.key for run in self.runs if run.key})
        rows: list[int] = []
        for run in self.runs:
            at = keys.index(run.key) if run.key else -1
            rows += [0, run.base_offset, run.end_offset, at, run.position, run.length]
            rows += [run.newest, run.batches]
        raws = {run.key: int(run.raw) for run in self.runs}
        return RunPage(
            position=1,
            partitions=[(TOPIC_ID, 0)],
            object_keys=keys,
            object_bytes=[len(self.store.objects[key]) for key in keys],
            object_raw=[raws[key] for key in keys],
            object_origins=[""] * len(keys),
            rows=rows,
            sums=[run.sum for run in self.runs],
        )

    def replace(self, item: KeyedItem, done: ItemDone) -> None:
        """The commit; checks what an agent checks."""
        (replaced,) = done.partitions
        assert replaced.inputs == item.partition.inputs
        start, end = replaced.inputs[0], replaced.inputs[-4]
        outputs = list(zip(*[iter(replaced.outputs)] * 7, strict=True))
        rows = []
        expected = start
        for (base, last, number, position, length, newest, batches), said in zip(
            outputs, replaced.sums, strict=True
        ):
            assert expected <= base < last <= end
            expected = last
            output = done.objects[number]
            body = self.store.objects[output.key]
            assert len(body) == output.size_bytes
            check_header(body[:16], subject=output.key)
            footer = parse_footer(body, size_bytes=len(body), subject=output.key)
            assert footer.offsets_final
            index = parse_index(
                body[footer.index_position : len(body) - FOOTER_BYTES], footer, subject=output.key
            )
            (indexed,) = index
            assert (indexed.base_offset, indexed.end_offset) == (base, last)
            assert (indexed.position, indexed.length) == (position, length)
            assert (indexed.max_timestamp, indexed.batch_count) == (newest, batches)
            assert said == run_sum(memoryview(body)[position : position + length], SEED)
            rows.append(Run(base, last, output.key, position, length, newest, batches, sum=said))
        assert expected == end, "the log's end must stay reachable"
        self.runs = rows + [run for run in self.runs if run.base_offset >= end]
        self.clean_end = replaced.clean_end

    def batches(self) -> list[ModelBatch]:
        """All batches that hold an offset from the log's start on."""
        found = []
        for run in self.runs:
            body = run.wal or self.store.objects[run.key][run.position : run.position + run.length]
            at, offset, count = 0, run.base_offset, 0
            while at < len(body):
                header = stored_header(body, at)
                batch = bytearray(body[at : at + header.length])
                if run.raw:
                    patch_base_offset(memoryview(batch), offset, 0)
                    header = stored_header(batch, 0)
                assert offset <= header.base_offset, "batches overlap"
                if count == 0:
                    assert header.base_offset == run.base_offset
                fields = HEADER.unpack_from(batch)
                if header.end_offset > self.log_start:
                    found.append(model_batch(memoryview(batch), fields))
                at, offset, count = at + header.length, header.end_offset, count + 1
            assert offset == run.end_offset
            assert count == run.batches
        return found


def model_batch(batch: memoryview, fields: tuple[int, ...]) -> ModelBatch:
    """A stored batch in the model's words."""
    base_offset, attributes, base_timestamp = fields[0], fields[5], fields[7]
    records = (
        tuple(
            ModelRecord(
                base_offset + record.offset_delta,
                record.timestamp,
                record.key,
                record.value,
                record.headers,
            )
            for record in decode_batch(batch)
        )
        if fields[12]
        else ()
    )
    return ModelBatch(
        base_offset=base_offset,
        last_offset=base_offset + fields[6],
        records=records,
        producer_id=fields[9],
        producer_epoch=fields[10],
        base_sequence=fields[11],
        delete_horizon_ms=base_timestamp if attributes & DELETE_HORIZON else None,
    )
