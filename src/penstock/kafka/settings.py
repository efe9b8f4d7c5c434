"""Settings of the Kafka face, as values; where they are read from is the config package's work."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.kafka.access import AclSettings

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Limits and defaults. Sizes in bytes, times in seconds unless named otherwise."""

    auto_create_topics: bool = True
    """Kafka's auto.create.topics.enable: a Metadata request that allows it creates topics."""
    auto_create_topics_per_s: int = 500
    """Topics that such requests may create in a second."""
    default_partitions: int = 1
    """Kafka's num.partitions: for topics created without a number."""
    topics_max: int = 100_000
    """Topics of the cluster; more are refused as POLICY_VIOLATION."""
    partitions_max: int = 250_000
    """Partitions of the cluster, all topics together; more are refused as POLICY_VIOLATION."""
    topic_partitions_max: int = 10_000
    """Partitions of one topic at most; more are refused as INVALID_PARTITIONS."""
    create_partitions_max: int = 10_000
    """Partitions that one request may create; more are refused as POLICY_VIOLATION."""
    fetch_sessions_max: int = 1000
    """Kafka's max.incremental.fetch.session.cache.slots."""
    request_bytes_max: int = 100 * MIB
    """Kafka's socket.request.max.bytes: a longer frame closes its connection."""
    batch_records_max: int = 1_000_000
    """Records of one batch that is validated, and headers of all its records together."""
    batch_decoded_bytes_max: int = 128 * MIB
    """Bytes of the records of one batch that is validated, decompressed."""
    connections_max: int = 10_000
    """Connections at one time; for further ones idle ones are closed, else they are refused."""
    connections_per_ip_max: int = (1 << 31) - 1
    """Kafka's max.connections.per.ip."""
    connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    """Kafka's max.connections.per.ip.overrides: by address."""
    connections_max_idle_s: float = 600.0
    """Kafka's connections.max.idle.ms: a connection without a request for this long is closed."""
    connection_budget_bytes: int = 64 * MIB
    """Bytes of whole requests and unsent replies that one connection may hold before it is not
    read from."""
    server_budget_bytes: int = 256 * MIB
    """The same for all connections together, requests being received included."""
    group_budget_bytes: int = 16 * MIB
    """The same for group calls alone, so that members keep their places while others fill the
    server's budget."""
    gather_ms: int = 2
    """How long a Produce request waits for those of other connections while many send (`waves`);
    0: never."""
    stall_timeout_s: float = 30.0
    """A peer that takes no byte of a reply, or sends none of a request begun, for this long is
    disconnected."""
    request_timeout_s: float = 30.0
    """How long a peer may take to send a request that it has begun, in which its bytes are waited
    for; a second more for every 64 KiB that came."""
    confirm_timeout_s: float = 5.0
    """How long a request waits to know the present of the cluster's journal before it is answered
    with an error that clients retry."""
    transaction_timeout_max_ms: int = 900_000
    """Kafka's transaction.max.timeout.ms: a producer that asks for more is refused."""
    transactional_id_expiration_ms: int = 7 * 86_400_000
    """Kafka's transactional.id.expiration.ms, as DescribeConfigs shows it."""
    acls: AclSettings | None = None
    """The authorizer's settings; None: there is no authorizer, everything is allowed."""
    authentication_timeout_s: float = 10.0
    """How long a client may take for TLS, and then for SASL."""
    authentication_bytes_max: int = 512 << 10
    """Kafka's sasl.server.max.receive.size: a frame of a client that isn't authenticated."""
    log_dir: str = "penstock"
    """The directory's name in answers of DescribeLogDirs."""
