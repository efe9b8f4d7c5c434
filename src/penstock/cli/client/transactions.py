"""librdkafka lacks these requests: list, describe and abort transactions, describe producers.

They go where Kafka wants them: to a transactional id's coordinator, to a partition's leader, and to
every node for a list.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Any, Final

from penstock.cli.client.cluster import Client, TopicInfo
from penstock.cli.client.errors import check, refusal
from penstock.cli.client.topic_partition import TopicPartition
from penstock.config.addresses import Address
from penstock.kafka.errors import ErrorCode
from penstock.kafka.wire.schema import build
from penstock.model.errors import NotFoundError

_TRANSACTION_KEY: Final = 1
_NONE: Final = -1
_CONCURRENT_TRANSACTIONS: Final = 51
_AGAIN_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id, its producer id, and its state by Kafka's name."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id. `begun_ms`: when its open transaction began; None: none is open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    begun_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProducer:
    """A producer with an open transaction in a partition."""

    place: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_ms: int
    """The time of its last batch there."""


def list_transactions(
    client: Client,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    longer_than_ms: int = _NONE,
    pattern: str | None = None,
) -> list[TransactionListing]:
    """List the transactional ids of all nodes that pass every filter, by id.

    Raises:
        RefusedError: the server takes the pattern for none.
        NotFoundError: a state is none that the server knows.
    """
    found = {}
    for address in client.nodes().values():
        response = _ask(
            client,
            address,
            "list_transactions",
            lambda types: build(
                types.ListTransactionsRequest,
                state_filters=tuple(states),
                producer_id_filters=tuple(producer_ids),
                duration_filter=longer_than_ms,
                transactional_id_pattern=pattern,
            ),
        )
        check("list transactions", str(address), response.error_code)
        if response.unknown_state_filters:
            raise NotFoundError(
                "list transactions",
                ", ".join(response.unknown_state_filters),
                "there is no such state",
                "states are Empty, Ongoing, CompleteCommit, CompleteAbort and some more",
            )
        for row in response.transaction_states:
            found[row.transactional_id] = TransactionListing(
                transactional_id=row.transactional_id,
                producer_id=row.producer_id,
                state=row.transaction_state,
            )
    return [found[name] for name in sorted(found)]


def describe_transaction(client: Client, transactional_id: str) -> TransactionDescription:
    """Describe a transactional id.

    Raises:
        NotFoundError: there is none.
    """
    response = _ask(
        client,
        _coordinator(client, transactional_id),
        "describe_transactions",
        lambda types: build(
            types.DescribeTransactionsRequest, transactional_ids=(transactional_id,)
        ),
    )
    (row,) = response.transaction_states
    if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise NotFoundError(
            "describe transaction", transactional_id, "there is no such transactional id"
        )
    check("describe transaction", transactional_id, row.error_code)
    start = row.transaction_start_time
    return TransactionDescription(
        transactional_id=row.transactional_id,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        state=row.transaction_state,
        timeout_ms=row.transaction_timeout // timedelta(milliseconds=1),
        begun_ms=None if start is None else round(start.timestamp() * 1000),
        partitions=tuple(
            sorted(
                TopicPartition(topic.topic, number)
                for topic in row.topics
                for number in topic.partitions
            )
        ),
    )


def end_by_id(client: Client, transaction: TransactionDescription) -> None:
    """Abort what is open of a transactional id, and fence its producer: the next epoch is given
    out, and no producer has it."""
    address = _coordinator(client, transaction.transactional_id)
    until_s = time.monotonic() + client.timeout_s
    while True:
        response = _ask(
            client,
            address,
            "init_producer_id",
            lambda types: build(
                types.InitProducerIdRequest,
                transactional_id=transaction.transactional_id,
                transaction_timeout=timedelta(milliseconds=transaction.timeout_ms),
                producer_id=_NONE,
                producer_epoch=_NONE,
            ),
        )
        # Kafka says so until its markers are written; Penstock never does.
        if response.error_code != _CONCURRENT_TRANSACTIONS or time.monotonic() > until_s:
            break
        time.sleep(_AGAIN_S)
    check("abort transaction", transaction.transactional_id, response.error_code)


def open_producers(client: Client, topic: TopicInfo) -> Iterator[OpenProducer]:
    """The producers with open transactions in a topic's partitions."""
    nodes = client.nodes()
    for leader in dict.fromkeys(topic.leaders.values()):
        if leader not in nodes:
            raise refusal("describe producers", topic.name, ErrorCode.LEADER_NOT_AVAILABLE)
        numbers = tuple(
            place.partition for place, other in topic.leaders.items() if other == leader
        )
        yield from _producers(client, nodes[leader], topic.name, numbers)


def end_in_partition(client: Client, leader: int, producer: OpenProducer) -> None:
    """Write an abort marker for a producer's transaction to a partition (KIP-664)."""
    place = producer.place
    response = _ask(
        client,
        client.nodes()[leader],
        "write_txn_markers",
        lambda types: build(
            types.WriteTxnMarkersRequest,
            markers=(
                build(
                    types.WritableTxnMarker,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    transaction_result=False,
                    coordinator_epoch=max(0, producer.coordinator_epoch),
                    transaction_version=0,
                    topics=(
                        build(
                            types.WritableTxnMarkerTopic,
                            name=place.topic,
                            partition_indexes=(place.partition,),
                        ),
                    ),
                ),
            ),
        ),
    )
    for marker in response.markers:
        for topic in marker.topics:
            for partition in topic.partitions:
                check("abort transaction", str(place), partition.error_code)


def _producers(
    client: Client, address: Address, topic: str, numbers: tuple[int, ...]
) -> Iterator[OpenProducer]:
    response = _ask(
        client,
        address,
        "describe_producers",
        lambda types: build(
            types.DescribeProducersRequest,
            topics=(build(types.TopicRequest, name=topic, partition_indexes=numbers),),
        ),
    )
    for found in response.topics:
        for partition in found.partitions:
            place = TopicPartition(found.name, partition.partition_index)
            check("describe producers", str(place), partition.error_code, partition.error_message)
            for row in partition.active_producers:
                if row.current_txn_start_offset >= 0:
                    yield OpenProducer(
                        place=place,
                        producer_id=row.producer_id,
                        producer_epoch=row.producer_epoch,
                        coordinator_epoch=row.coordinator_epoch,
                        start_offset=row.current_txn_start_offset,
                        last_ms=row.last_timestamp,
                    )


def _coordinator(client: Client, transactional_id: str) -> Address:
    found = client.connection().request(
        "find_coordinator",
        lambda types: build(
            types.FindCoordinatorRequest, key=transactional_id, key_type=_TRANSACTION_KEY
        ),
    )
    check("find coordinator", transactional_id, found.error_code, found.error_message)
    return Address(found.host, found.port)


def _ask(client: Client, address: Address, api: str, make: Callable[[ModuleType], Any]) -> Any:
    with contextlib.closing(client.connect_to(address)) as connection:
        return connection.request(api, make)
