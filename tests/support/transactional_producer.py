"""A transactional producer that speaks to a log below the Kafka API."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Protocol

from penstock.log import Log
from penstock.log.append.plan import PartitionAppend
from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey
from penstock.records import batch as batches
from penstock.records.batch import check_batch, stored_header
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.state.answers import BatchStatus, TransactionSettled
from penstock.state.commands import ADDS_ITSELF, TRANSACTIONAL
from penstock.state.transaction_commands import EndTransaction, InitTransaction
from support.batches import ANY
from support.log_rig import NOW, Rig

_LIMITS = replace(ANY, takes_transactions=True)


class HasLog(Protocol):
    """A rig of any kind."""

    @property
    def log(self) -> Log: ...


class TransactionalProducer:
    """Speak protocol V2: each end gives the next epoch."""

    def __init__(self, rig: HasLog, name: str) -> None:
        self.rig = rig
        self.name = name
        self.producer_id = self.epoch = -1
        self.sequences: Counter[PartitionKey] = Counter()

    async def begin(self) -> None:
        init = InitTransaction(transactional_id=self.name, timeout_ms=60_000)
        (answer,) = await self.rig.log.commit([init])
        self.settled(answer)

    async def write(
        self, key: PartitionKey, value: bytes | None, *, record_key: bytes | None = None
    ) -> None:
        record = Record(offset_delta=0, timestamp=NOW, key=record_key, value=value, headers=())
        encoded = encode_batch(
            [record],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences[key],
            attributes=batches.TRANSACTIONAL,
        )
        batch = check_batch(memoryview(encoded), _LIMITS, NOW)
        append = PartitionAppend(key, batch, epoch_bits=TRANSACTIONAL | ADDS_ITSELF)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        self.rig.log.append([append], timeout_ms=5_000, done=done)
        await answer
        assert append.status is BatchStatus.STORED, append
        self.sequences[key] += 1

    async def end(self, *, commits: bool) -> None:
        end = EndTransaction(
            transactional_id=self.name,
            producer_id=self.producer_id,
            epoch=self.epoch,
            commits=commits,
            bumps=True,
        )
        (answer,) = await self.rig.log.commit([end])
        self.settled(answer)

    def settled(self, answer: object) -> None:
        assert isinstance(answer, TransactionSettled), answer
        self.producer_id, self.epoch = answer.producer_id, answer.epoch
        self.sequences.clear()


async def fill(rig: Rig, key: PartitionKey) -> list[tuple[int, int, bool]]:
    """Records with two markers between; offset, producer id and outcome of these."""
    first, second = TransactionalProducer(rig, "one"), TransactionalProducer(rig, "two")
    await first.begin()
    await second.begin()
    await rig.append(key, b"plain")
    await first.write(key, b"a")
    assert rig.log.last_stable_offset(key) == 1
    await second.write(key, b"b")
    await first.end(commits=True)
    assert rig.log.last_stable_offset(key) == 2
    await second.write(key, b"c")
    await second.end(commits=False)
    await rig.append(key, b"plain")
    assert rig.log.last_stable_offset(key) == rig.log.high_watermark(key) == 7
    return [(3, first.producer_id, True), (5, second.producer_id, False)]


async def read_batches(rig: HasLog, key: PartitionKey) -> list[bytes]:
    """Every batch from the log start to the high watermark, by base offset without gaps."""
    at = rig.log.log_start(key)
    found = []
    while at < rig.log.high_watermark(key):
        read = await rig.log.reader.read_loaded(key, at, 200)
        assert read is not None, at
        data = b"".join(read.views)
        position = 0
        while position < len(data):
            header = stored_header(data, position)
            assert header.base_offset == at
            found.append(data[position : position + header.length])
            position += header.length
            at = header.end_offset
    return found
