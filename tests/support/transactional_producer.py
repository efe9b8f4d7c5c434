"""A transactional producer that speaks to a log below the Kafka API."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from penstock.log.append.plan import PartitionAppend
from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey
from penstock.records import batch as batches
from penstock.records.batch import check_batch
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.state.answers import TransactionSettled
from penstock.state.commands import ADDS_ITSELF, TRANSACTIONAL
from penstock.state.transaction_commands import EndTransaction, InitTransaction
from support.batches import ANY
from support.log_rig import NOW, Rig

_LIMITS = replace(ANY, takes_transactions=True)


class TransactionalProducer:
    """Speak protocol V2: each end gives the next epoch."""

    def __init__(self, rig: Rig, name: str) -> None:
        self.rig = rig
        self.name = name
        self.producer_id = self.epoch = -1
        self.sequence = 0

    async def begin(self) -> None:
        init = InitTransaction(transactional_id=self.name, timeout_ms=60_000)
        (answer,) = await self.rig.log.commit([init])
        self.settled(answer)

    async def write(self, key: PartitionKey, value: bytes) -> None:
        record = Record(offset_delta=0, timestamp=NOW, key=None, value=value, headers=())
        encoded = encode_batch(
            [record],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
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
        self.sequence += 1

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
        self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.epoch, 0
