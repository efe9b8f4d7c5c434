"""Looks at transactions for the Kafka face, by threads of the pool; finds all that was applied."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from penstock.log.state_queries import StateQueries
from penstock.model.ids import PartitionKey
from penstock.state.read.queries import Queries
from penstock.state.rows import PartitionProducer
from penstock.state.transactions import Transaction

T = TypeVar("T")


class TransactionReads:
    """Questions about transactions and producers. Event loop only.

    Every method raises RetryableError while the process that writes the database is away.
    """

    def __init__(self, queries: StateQueries, pool: Executor) -> None:
        self._queries = queries
        self._pool = pool

    async def find(self, transactional_ids: Sequence[str]) -> list[Transaction | None]:
        """Transactions by their ids; None: there is none of an id."""
        return await self._ask(
            lambda queries: [queries.transaction(each) for each in transactional_ids]
        )

    async def page(self, after: int, *, limit: int) -> list[Transaction]:
        """A page of all transactional ids by producer id, past `after` (-1 to begin)."""
        return await self._ask(lambda queries: queries.transactions_page(after, limit=limit))

    async def of_producer(
        self, producer_id: int
    ) -> tuple[Transaction | None, dict[PartitionKey, int]]:
        """The transactional id of a producer, and first offsets of what is open of it by partition;
        -1: it has no record there."""

        def look(queries: Queries) -> tuple[Transaction | None, dict[PartitionKey, int]]:
            return (
                queries.transaction_of_producer(producer_id),
                queries.transaction_partitions(producer_id),
            )

        return await self._ask(look)

    async def producers(
        self, key: PartitionKey, after: int, *, limit: int
    ) -> list[PartitionProducer]:
        """A page of a partition's producers by id, past `after` (-1 to begin)."""
        return await self._ask(lambda queries: queries.partition_producers(key, after, limit=limit))

    async def producer_count(self, key: PartitionKey) -> int:
        """Count a partition's producers."""
        return await self._ask(lambda queries: queries.producer_count(key))

    async def epochs(self, keys: Sequence[PartitionKey], producer_id: int) -> dict[int, int]:
        """A producer's last epoch in those of some partitions that know it, by partition key."""

        def look(queries: Queries) -> dict[int, int]:
            found = ((key, queries.producer(key, producer_id)) for key in keys)
            return {key: producer.epoch for key, producer in found if producer is not None}

        return await self._ask(look)

    async def _ask(self, question: Callable[[Queries], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: question(self._queries.caught_up()))
