"""The partitions that a fetch wants: where each is, and what a connection remembers of them."""

from collections.abc import Sequence
from typing import Final

from penstock.kafka.access import Access
from penstock.kafka.confirmed import Certainty
from penstock.kafka.errors import ErrorCode
from penstock.kafka.partitions import NO_LEADER_EPOCH, leader_epoch_error
from penstock.kafka.wire.fetch_codec import FetchPartition, FetchRequest, PartitionData
from penstock.kafka.wire.fetch_repeat import KnownFetch
from penstock.log.fetch.waiters import Waiter
from penstock.model.ids import PartitionKey, partition_key
from penstock.model.topic_configs import TOPIC_CONFIGS, effective
from penstock.security.acl import Operation
from penstock.state.read.view import Head, StateView, Topic

_NO_PARTITION: Final = PartitionKey(-1)
ZSTD_FROM: Final = 10
"""KIP-110: the version of those who know zstd. Kafka looks at the config, not at batches."""
_COMPRESSION: Final = TOPIC_CONFIGS["compression.type"]


class Target:
    """One wanted partition: where it is (`head` is None if it isn't, or is asked for by another
    leader epoch), and what is answered."""

    __slots__ = (
        "bytes_max",
        "data",
        "head",
        "key",
        "leader_epoch",
        "offset",
        "place_error",
        "wanted",
    )

    def __init__(
        self, key: PartitionKey, head: Head | None, data: PartitionData, wanted: FetchPartition
    ) -> None:
        self.key = key
        self.head = head
        self.data = data
        self.wanted = wanted
        self.offset = wanted.fetch_offset
        self.bytes_max = wanted.bytes_max
        self.leader_epoch = wanted.leader_epoch
        self.place_error = data.error_code


class LastFetch:
    """A connection's last request without a session, and where its partitions were found."""

    __slots__ = ("generation", "known", "request", "targets", "version", "waiter")

    def __init__(self, version: int, body: bytes, request: FetchRequest) -> None:
        self.version = version
        self.known = KnownFetch(body, request.spans)
        self.request = request
        self.targets: list[Target] = []
        """In the order of `request.partitions`; as of `generation` of the view."""
        self.generation = -1
        self.waiter: Waiter | None = None
        """Waits for records of those targets."""


def find_targets(
    wanted_partitions: Sequence[FetchPartition],
    view: StateView,
    certainty: Certainty,
    *,
    version: int,
    access: Access | None,
) -> list[Target]:
    """Find each wanted partition. This is done once per version of the topics, since most fetches
    of many partitions find nothing new in nearly all of them.

    Args:
        version: of the request.
        access: what the client may do; None: everything.
    """
    targets = []
    known_epochs = (view.leader_epoch, NO_LEADER_EPOCH)
    named: str | bytes | None = None
    topic: Topic | None = None
    unreadable = False
    refused = ErrorCode.NONE
    for wanted in wanted_partitions:
        if wanted.topic is not named:
            named = wanted.topic
            topic = view.topic_by_id(named) if isinstance(named, bytes) else view.topic(named)
            unreadable = version < ZSTD_FROM and topic is not None and _has_zstd(topic, view)
            if access is not None:
                refused = _refusal(access, named, topic)
        data = PartitionData(wanted.topic, wanted.partition, 0)
        head = None
        key = _NO_PARTITION
        if refused:
            data.error_code = refused
        elif topic is None:
            data.error_code = certainty.no(
                ErrorCode.UNKNOWN_TOPIC_ID
                if isinstance(named, bytes)
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
            )
        elif 0 <= wanted.partition < topic.partitions:
            key = partition_key(topic.topic_key, wanted.partition)
            head = view.head(key)
            if head is not None and wanted.leader_epoch not in known_epochs:
                data.error_code = leader_epoch_error(wanted.leader_epoch, view.leader_epoch)
            elif head is not None and unreadable:
                data.error_code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        if data.error_code and head is not None:
            # Errors carry the real offsets too: -1 makes some clients loop.
            data.high_watermark, data.last_stable_offset = head.next_offset, head.last_stable
            data.log_start_offset = head.log_start
            head = None
        elif head is None and not data.error_code:
            data.error_code = certainty.no(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        targets.append(Target(key, head, data, wanted))
    return targets


def _refusal(access: Access, named: str | bytes, topic: Topic | None) -> ErrorCode:
    """The error of a client that may not read a topic. An id that no topic has is open to all."""
    name = named if topic is None else topic.name
    return ErrorCode.NONE if isinstance(name, bytes) else access.topic(Operation.READ, name)


def _has_zstd(topic: Topic, view: StateView) -> bool:
    """Whether the topic's batches are zstd where they are merged."""
    return effective(_COMPRESSION, topic.configs, view.cluster_configs) == "zstd"
