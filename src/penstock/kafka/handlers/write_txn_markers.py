"""WriteTxnMarkers 1 and 2: an operator's abort of a hanging transaction (KIP-664).

Kafka's coordinators send it to leaders of partitions; here nothing but `kafka-transactions abort`
does, one partition at a time. A marker lies where an entry of the journal ends a transaction, so an
abort that names one partition of an open transaction ends all of it, and fences its producer. Where
nothing is open an abort has nothing to do. A commit is refused with INVALID_REQUEST: whether a
transaction commits is its producer's to say.

A marker's epoch below the producer's is INVALID_PRODUCER_EPOCH, as in Kafka.
"""

import logging
from types import ModuleType
from typing import TYPE_CHECKING, Final

from penstock.kafka import confirmed as fresh
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, error_code
from penstock.kafka.long_answer import Answer
from penstock.kafka.partitions import find_partition
from penstock.kafka.transaction_states import note_away
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.encode import EncodedParts
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import PenstockError, RetryableError
from penstock.model.ids import PartitionKey
from penstock.security.acl import Operation
from penstock.state.answers import TransactionsAborted
from penstock.state.transaction_commands import AbortTransactions
from penstock.state.transactions import NO_OPEN, Transaction, TransactionState

if TYPE_CHECKING:
    from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest

MARKER_COST: Final = 10
"""The cost of a marker, in items: the state is asked about it."""

logger = logging.getLogger(__name__)


async def handle(context: RequestContext, request: "WriteTxnMarkersRequest") -> Answer:
    """Abort what the markers name, one after the other."""
    types = response_types("write_txn_markers", context.api_version)
    access = context.access
    refused = access.cluster(Operation.ALTER) and access.cluster(Operation.CLUSTER_ACTION)
    known = await fresh.confirm(context)
    results = ArrayWriter(types.WritableTxnMarkerResult)
    async for marker in context.broker.turns.each(request.markers, cost=MARKER_COST):
        asked = _Marker(context, marker)
        errors = asked.refused(refused) if refused else await asked.errors(known=known)
        results.add(
            producer_id=marker.producer_id,
            topics=await _topics(context, types, marker, errors),
        )
    return build(types.WriteTxnMarkersResponse, markers=results.encoded())


class _Marker:
    """One marker, and what its partitions are."""

    def __init__(self, context: RequestContext, marker: "WritableTxnMarker") -> None:
        self._context = context
        self._marker = marker
        self._partitions: dict[tuple[str, int], PartitionKey | None] = {
            (topic.name, number): find_partition(context.broker.view, topic.name, number)
            for topic in marker.topics
            for number in topic.partition_indexes
        }

    def refused(self, error: ErrorCode) -> dict[tuple[str, int], ErrorCode]:
        """The error of each partition, whether or not it exists."""
        return dict.fromkeys(self._partitions, error)

    async def errors(self, *, known: bool) -> dict[tuple[str, int], ErrorCode]:
        """Carry it out; the error of each partition.

        Args:
            known: whether the state is of the present.
        """
        if not known:
            return self._all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._marker.transaction_result:
            return self._all(ErrorCode.INVALID_REQUEST)
        try:
            return await self._abort()
        except RetryableError as error:
            note_away(error)
            return self._all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        except PenstockError as error:
            return self._all(error_code(error))

    async def _abort(self) -> dict[tuple[str, int], ErrorCode]:
        marker, reads = self._marker, self._context.broker.log.transaction_reads
        keys = [key for key in self._partitions.values() if key is not None]
        row, first_offsets = await reads.of_producer(marker.producer_id)
        epochs = await reads.epochs(keys, marker.producer_id)
        errors = self._all(ErrorCode.NONE)
        ends = False
        for place, key in self._partitions.items():
            if key is None:
                continue
            is_open = row is not None and first_offsets.get(key, NO_OPEN) != NO_OPEN
            # An abort that is sent again finds the epoch of its own marker, which is one above.
            least = row.epoch if row and is_open else epochs.get(key, 0) - 1
            if marker.producer_epoch < least:
                errors[place] = ErrorCode.INVALID_PRODUCER_EPOCH
            elif is_open:
                ends = True
        if ends and row is not None and row.state is TransactionState.ONGOING:
            await self._end(row)
        return errors

    async def _end(self, row: Transaction) -> None:
        item = (row.transactional_id, row.producer_id, row.epoch, row.since)
        (answer,) = await self._context.broker.committer.commit([AbortTransactions(items=[item])])
        # If it has ended meanwhile there is nothing to abort any more.
        if isinstance(answer, TransactionsAborted) and answer.aborted:
            logger.warning(
                "client %r at %s aborted the open transaction of %r (producer id %d, epoch %d) in "
                "all its %d partitions and groups",
                self._context.client_id,
                self._context.client_host,
                row.transactional_id,
                row.producer_id,
                row.epoch,
                row.added,
            )

    def _all(self, error: ErrorCode) -> dict[tuple[str, int], ErrorCode]:
        """An error for the partitions that exist."""
        return {
            place: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if key is None else error
            for place, key in self._partitions.items()
        }


async def _topics(
    context: RequestContext,
    types: ModuleType,
    marker: "WritableTxnMarker",
    errors: dict[tuple[str, int], ErrorCode],
) -> EncodedParts:
    turns = context.broker.turns
    by_topic: dict[str, dict[int, ErrorCode]] = {}
    for (name, number), error in errors.items():
        by_topic.setdefault(name, {})[number] = error
    topics = ArrayWriter(types.WritableTxnMarkerTopicResult)
    async for name in turns.each(dict.fromkeys(topic.name for topic in marker.topics)):
        partitions = ArrayWriter(types.WritableTxnMarkerPartitionResult)
        async for number, error in turns.each(by_topic.get(name, {}).items()):
            partitions.add(partition_index=number, error_code=error)
        topics.add(name=name, partitions=partitions.encoded())
    return topics.encoded()
