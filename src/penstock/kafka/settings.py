"""Settings of the Kafka face, as values; where they are read from is the config package's work."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Limits and defaults. Sizes in bytes, times in seconds unless named otherwise."""

    auto_create_topics: bool = True
    """Kafka's auto.create.topics.enable: a Metadata request that allows it creates topics."""
    default_partitions: int = 1
    """Kafka's num.partitions: for topics created without a number."""
    partitions_max: int = 10_000
    """Partitions of one topic at most; more are refused as INVALID_PARTITIONS."""
    request_bytes_max: int = 100 * MIB
    """Kafka's socket.request.max.bytes: a longer frame closes its connection."""
    connections_max: int = 10_000
    """Connections at one time; more are closed at once."""
    connection_budget_bytes: int = 64 * MIB
    """Bytes of whole requests and unsent replies that one connection may hold before it is not
    read from."""
    server_budget_bytes: int = 256 * MIB
    """The same for all connections together, requests being received included."""
    gather_ms: int = 2
    """How long a Produce request waits for those of other connections while many send (`waves`);
    0: never."""
    stall_timeout_s: float = 30.0
    """A peer that takes no byte of a reply, or sends none of a request begun, for this long is
    disconnected."""
    confirm_timeout_s: float = 5.0
    """How long a request waits to know the present of the cluster's journal before it is answered
    with an error that clients retry."""
    log_dir: str = "penstock"
    """What DescribeLogDirs names as the directory."""
