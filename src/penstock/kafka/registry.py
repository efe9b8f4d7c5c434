"""The table of APIs: which are served, in which versions, and by which module.

Modules are imported on first use, so that starting takes no time for unused APIs. An API that is
not in the table is not advertised, and a request for it closes the connection, as in Kafka.
Source of the ranges: Kafka's message files, 4.3.1; floors by KIP-896.
"""

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from penstock.state.schema import SECURITY_LEVEL, SHARES_LEVEL, STREAMS_LEVEL, TRANSACTIONS_LEVEL


@dataclass(slots=True, kw_only=True)
class Api:
    """One API. `versions_min` is what is served; `advertised_min` what ApiVersions says.

    `flexible_from` is the first version whose headers and body are flexible (KIP-482).
    """

    key: int
    name: str
    module: str
    versions_min: int
    versions_max: int
    flexible_from: int
    advertised_min: int
    shapes: tuple[int, ...]
    """The versions whose kio classes its handler takes, ascending: see `taken_version`."""
    of_groups: bool = False
    """Its bytes count in the reserve of group calls: a member that can't send it in time loses its
    place. Clients begin with some of them, so that these are here as well."""
    level: int = 1
    """The feature level from which on it is served."""
    overlaps: bool = False
    """Requests of this API may start while earlier ones of it on the connection are unanswered."""
    stage: str = ""
    """The name under which its requests' durations are observed, and so counted."""
    handler: ModuleType | None = None
    raw: bool = False
    """Known once the module is imported: it takes and gives bytes."""

    def taken_version(self, version: int) -> int:
        """The version whose kio class a request is read into: what it lacks has its default there,
        as in Kafka's own classes, so that handlers ask for no field whether it is there."""
        return next(shape for shape in self.shapes if shape >= version)

    def load(self) -> ModuleType:
        """The handler module, imported on first use."""
        if self.handler is None:
            module = importlib.import_module(f"penstock.kafka.handlers.{self.module}")
            self.raw = getattr(module, "RAW", False)
            self.handler = module
        return self.handler


NEVER: Final = 1 << 15
"""`flexible_from` of an API without flexible versions."""

# key, Kafka's name, module (which is also kio's name), first and last version, first flexible one.
_ROWS: Final[tuple[tuple[int, str, str, int, int, int], ...]] = (
    (0, "Produce", "produce", 3, 13, 9),
    (1, "Fetch", "fetch", 4, 18, 12),
    (2, "ListOffsets", "list_offsets", 1, 11, 6),
    (3, "Metadata", "metadata", 0, 13, 9),
    (8, "OffsetCommit", "offset_commit", 2, 10, 8),
    (9, "OffsetFetch", "offset_fetch", 1, 10, 6),
    (10, "FindCoordinator", "find_coordinator", 0, 6, 3),
    (11, "JoinGroup", "join_group", 0, 9, 6),
    (12, "Heartbeat", "heartbeat", 0, 4, 4),
    (13, "LeaveGroup", "leave_group", 0, 5, 4),
    (14, "SyncGroup", "sync_group", 0, 5, 4),
    (15, "DescribeGroups", "describe_groups", 0, 6, 5),
    (16, "ListGroups", "list_groups", 0, 5, 3),
    (17, "SaslHandshake", "sasl_handshake", 0, 1, NEVER),
    (18, "ApiVersions", "api_versions", 0, 4, 3),
    (19, "CreateTopics", "create_topics", 2, 7, 5),
    (20, "DeleteTopics", "delete_topics", 1, 6, 4),
    (21, "DeleteRecords", "delete_records", 0, 2, 2),
    (22, "InitProducerId", "init_producer_id", 0, 5, 2),
    (23, "OffsetForLeaderEpoch", "offset_for_leader_epoch", 2, 4, 4),
    (24, "AddPartitionsToTxn", "add_partitions_to_txn", 0, 5, 3),
    (25, "AddOffsetsToTxn", "add_offsets_to_txn", 0, 4, 3),
    (26, "EndTxn", "end_txn", 0, 5, 3),
    (27, "WriteTxnMarkers", "write_txn_markers", 1, 2, 1),
    (28, "TxnOffsetCommit", "txn_offset_commit", 0, 5, 3),
    (29, "DescribeAcls", "describe_acls", 1, 3, 2),
    (30, "CreateAcls", "create_acls", 1, 3, 2),
    (31, "DeleteAcls", "delete_acls", 1, 3, 2),
    (32, "DescribeConfigs", "describe_configs", 1, 4, 4),
    (33, "AlterConfigs", "alter_configs", 0, 2, 2),
    (34, "AlterReplicaLogDirs", "alter_replica_log_dirs", 1, 2, 2),
    (35, "DescribeLogDirs", "describe_log_dirs", 1, 5, 2),
    (36, "SaslAuthenticate", "sasl_authenticate", 0, 2, 2),
    (37, "CreatePartitions", "create_partitions", 0, 3, 2),
    (38, "CreateDelegationToken", "create_delegation_token", 1, 3, 2),
    (39, "RenewDelegationToken", "renew_delegation_token", 1, 2, 2),
    (40, "ExpireDelegationToken", "expire_delegation_token", 1, 2, 2),
    (41, "DescribeDelegationToken", "describe_delegation_token", 1, 3, 2),
    (42, "DeleteGroups", "delete_groups", 0, 2, 2),
    (43, "ElectLeaders", "elect_leaders", 0, 2, 2),
    (44, "IncrementalAlterConfigs", "incremental_alter_configs", 0, 1, 1),
    (45, "AlterPartitionReassignments", "alter_partition_reassignments", 0, 1, 0),
    (46, "ListPartitionReassignments", "list_partition_reassignments", 0, 0, 0),
    (47, "OffsetDelete", "offset_delete", 0, 0, NEVER),
    (48, "DescribeClientQuotas", "describe_client_quotas", 0, 1, 1),
    (49, "AlterClientQuotas", "alter_client_quotas", 0, 1, 1),
    (50, "DescribeUserScramCredentials", "describe_user_scram_credentials", 0, 0, 0),
    (51, "AlterUserScramCredentials", "alter_user_scram_credentials", 0, 0, 0),
    (55, "DescribeQuorum", "describe_quorum", 0, 2, 0),
    (57, "UpdateFeatures", "update_features", 0, 2, 0),
    (60, "DescribeCluster", "describe_cluster", 0, 2, 0),
    (61, "DescribeProducers", "describe_producers", 0, 0, 0),
    (64, "UnregisterBroker", "unregister_broker", 0, 0, 0),
    (65, "DescribeTransactions", "describe_transactions", 0, 0, 0),
    (66, "ListTransactions", "list_transactions", 0, 2, 0),
    (68, "ConsumerGroupHeartbeat", "consumer_group_heartbeat", 0, 1, 0),
    (69, "ConsumerGroupDescribe", "consumer_group_describe", 0, 1, 0),
    (74, "ListConfigResources", "list_config_resources", 0, 1, 0),
    (75, "DescribeTopicPartitions", "describe_topic_partitions", 0, 0, 0),
    (76, "ShareGroupHeartbeat", "share_group_heartbeat", 1, 1, 0),
    (77, "ShareGroupDescribe", "share_group_describe", 1, 1, 0),
    (78, "ShareFetch", "share_fetch", 1, 2, 0),
    (79, "ShareAcknowledge", "share_acknowledge", 1, 2, 0),
    (80, "AddRaftVoter", "add_raft_voter", 0, 1, 0),
    (81, "RemoveRaftVoter", "remove_raft_voter", 0, 0, 0),
    (88, "StreamsGroupHeartbeat", "streams_group_heartbeat", 0, 0, 0),
    (89, "StreamsGroupDescribe", "streams_group_describe", 0, 0, 0),
    (90, "DescribeShareGroupOffsets", "describe_share_group_offsets", 0, 1, 0),
    (91, "AlterShareGroupOffsets", "alter_share_group_offsets", 0, 0, 0),
    (92, "DeleteShareGroupOffsets", "delete_share_group_offsets", 0, 0, 0),
)

PRODUCE_KEY: Final = 0
API_VERSIONS_KEY: Final = 18
OF_GROUPS: Final = frozenset(
    {
        "OffsetCommit",
        "FindCoordinator",
        "JoinGroup",
        "Heartbeat",
        "LeaveGroup",
        "SyncGroup",
        "ConsumerGroupHeartbeat",
        "ShareGroupHeartbeat",
        "ShareAcknowledge",
        "StreamsGroupHeartbeat",
        "ApiVersions",
        "SaslHandshake",
        "SaslAuthenticate",
        "InitProducerId",
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "EndTxn",
        "TxnOffsetCommit",
    }
)


_SHAPES: Final = {
    "OffsetCommit": (9, 10),
    "OffsetFetch": (7, 9, 10),
    "FindCoordinator": (3, 6),
    "LeaveGroup": (2, 5),
    "AddPartitionsToTxn": (3, 5),
    "DeleteTopics": (5, 6),
    "UpdateFeatures": (0, 2),
}
"""Versions after which Kafka has replaced fields: a topic's name by its id, one group by many."""
OF_TRANSACTIONS: Final = frozenset(
    {
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "EndTxn",
        "WriteTxnMarkers",
        "TxnOffsetCommit",
        "DescribeProducers",
        "DescribeTransactions",
        "ListTransactions",
    }
)
"""APIs that are served from the feature level of transactions on."""
OF_SHARES: Final = frozenset(
    {
        "ShareGroupHeartbeat",
        "ShareGroupDescribe",
        "ShareFetch",
        "ShareAcknowledge",
        "DescribeShareGroupOffsets",
        "AlterShareGroupOffsets",
        "DeleteShareGroupOffsets",
    }
)
"""APIs that are served from the feature level of share groups on."""


OF_STREAMS: Final = frozenset({"StreamsGroupHeartbeat", "StreamsGroupDescribe"})
"""APIs that are served from the feature level of streams groups on."""
OF_CREDENTIALS: Final = frozenset({"DescribeUserScramCredentials", "AlterUserScramCredentials"})
"""APIs that are served from the feature level of credentials on."""


def _level(name: str) -> int:
    if name in OF_SHARES:
        return SHARES_LEVEL
    if name in OF_STREAMS:
        return STREAMS_LEVEL
    if name in OF_CREDENTIALS:
        return SECURITY_LEVEL
    return TRANSACTIONS_LEVEL if name in OF_TRANSACTIONS else 1


def _api(key: int, name: str, module: str, first: int, last: int, flexible: int) -> Api:
    return Api(
        key=key,
        name=name,
        module=module,
        versions_min=first,
        versions_max=last,
        flexible_from=flexible,
        # KAFKA-18659: librdkafka before 2.6.1 switches compression and the newer record format
        # off unless Produce is advertised from 0; requests below 3 are refused all the same.
        advertised_min=0 if key == PRODUCE_KEY else first,
        shapes=_SHAPES.get(name, (last,)),
        of_groups=name in OF_GROUPS,
        level=_level(name),
        overlaps=key == PRODUCE_KEY,
        stage=f"request:{name}",
    )


APIS: Final[dict[int, Api]] = {row[0]: _api(*row) for row in _ROWS}
"""The APIs by key, in the order of keys."""

_GROUP_KEYS: Final = frozenset(api.key for api in APIS.values() if api.of_groups)


def is_of_groups(key: int | None) -> bool:
    """Whether a request with this API key, if it is known, is a group call."""
    return key in _GROUP_KEYS


SASL_TOKEN: Final = Api(
    key=-1,
    name="SaslToken",
    module="sasl_token",
    versions_min=0,
    versions_max=0,
    flexible_from=NEVER,
    advertised_min=0,
    shapes=(0,),
    of_groups=True,
    stage="request:SaslAuthenticate",
)
"""Stands for what a client sends after SaslHandshake 0: it has no header, and no key."""

BY_MODULE: Final[dict[str, Api]] = {api.module: api for api in APIS.values()}
