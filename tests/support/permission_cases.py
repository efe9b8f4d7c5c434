"""A request of each served API, with the permissions that it needs and the error without them.

The table has a row for each API that is served. `needs` are the permissions of docs/acls.md;
`refused` is the error without any of them, None where the answer is as if nothing were there.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol

from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.security.acl import CLUSTER_NAME, AclBinding, Operation, ResourceType
from support.acls import acl

TOPIC = ResourceType.TOPIC
SOON = timedelta(seconds=5)

of_topic = "topic_authorization_failed"
of_group = "group_authorization_failed"
of_id = "transactional_id_authorization_failed"
of_cluster = "cluster_authorization_failed"
REFUSALS = {of_topic, of_group, of_id, of_cluster}


def topic(operation: Operation, name: str = "t") -> AclBinding:
    return acl(operation, TOPIC, name)


def group(operation: Operation) -> AclBinding:
    return acl(operation, ResourceType.GROUP, "g")


def transaction(operation: Operation) -> AclBinding:
    return acl(operation, ResourceType.TRANSACTIONAL_ID, "x")


def cluster(operation: Operation) -> AclBinding:
    return acl(operation, ResourceType.CLUSTER, CLUSTER_NAME)


class MakesParts(Protocol):
    """What makes the nested entities of requests."""

    def part(self, api: str, version: int, kind: str, /, **fields: Any) -> Any:
        """Make one."""


class Asking:
    """Builds requests that name the topic `name`, the group g and the transactional id x."""

    def __init__(
        self, client: MakesParts, name: str, topic_id: bytes, version: int | None = None
    ) -> None:
        self.client = client
        self.name = name
        self.topic_id = uuid.UUID(bytes=topic_id)
        self._version = version

    def version(self, usual: int) -> int:
        """The version of the request; the case's own, unless another one is asked for."""
        return usual if self._version is None else self._version

    def part(self, api: str, version: int, kind: str, **fields: Any) -> Any:
        """A nested entity of a request, whose topic is named by its id where the version has it."""
        fields.setdefault("topic_id", self.topic_id)
        return self.client.part(api, self.version(version), kind, **fields)

    def batch(self) -> bytes:
        record = Record(offset_delta=0, timestamp=1, key=None, value=b"v", headers=())
        return bytes(encode_batch([record]))


Fields = dict[str, Any]


class Case(NamedTuple):
    version: int
    fields: Callable[[Asking], Fields]
    needs: tuple[AclBinding, ...] = ()
    refused: str | None = None
    names_topic: bool = False


def _produce(asking: Asking) -> Fields:
    data = asking.part("produce", 9, "PartitionProduceData", index=0, records=asking.batch())
    named = asking.part("produce", 9, "TopicProduceData", name=asking.name, partition_data=(data,))
    return {"transactional_id": None, "acks": -1, "timeout": SOON, "topic_data": (named,)}


def _fetch(asking: Asking) -> Fields:
    wanted = asking.part(
        "fetch",
        12,
        "FetchPartition",
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=0,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )
    named = asking.part("fetch", 12, "FetchTopic", topic=asking.name, partitions=(wanted,))
    return {
        "replica_id": -1,
        "max_wait": timedelta(0),
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": (named,),
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def _list_offsets(asking: Asking) -> Fields:
    wanted = asking.part(
        "list_offsets",
        7,
        "ListOffsetsPartition",
        partition_index=0,
        current_leader_epoch=-1,
        timestamp=-1,
    )
    named = asking.part(
        "list_offsets", 7, "ListOffsetsTopic", name=asking.name, partitions=(wanted,)
    )
    return {"replica_id": -1, "isolation_level": 0, "topics": (named,), "timeout": SOON}


def _metadata(asking: Asking) -> Fields:
    named = asking.part("metadata", 9, "MetadataRequestTopic", name=asking.name, topic_id=None)
    return {
        "topics": (named,),
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }


def _offset_commit(asking: Asking) -> Fields:
    wanted = asking.part(
        "offset_commit",
        8,
        "OffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=0,
        committed_leader_epoch=-1,
        committed_metadata="",
    )
    named = asking.part(
        "offset_commit", 8, "OffsetCommitRequestTopic", name=asking.name, partitions=(wanted,)
    )
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": (named,),
    }


def _offset_fetch(asking: Asking) -> Fields:
    if asking.version(9) < 8:
        kind = "OffsetFetchRequestTopic"
        one = asking.part("offset_fetch", 7, kind, name=asking.name, partition_indexes=(0,))
        return {"group_id": "g", "topics": (one,), "require_stable": False}
    named = asking.part(
        "offset_fetch", 9, "OffsetFetchRequestTopics", name=asking.name, partition_indexes=(0,)
    )
    wanted = asking.part(
        "offset_fetch",
        9,
        "OffsetFetchRequestGroup",
        group_id="g",
        member_id=None,
        member_epoch=-1,
        topics=(named,),
    )
    return {"groups": (wanted,), "require_stable": False}


def _join(asking: Asking) -> Fields:
    protocol = asking.part("join_group", 5, "JoinGroupRequestProtocol", name="p", metadata=b"")
    return {
        "group_id": "g",
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": timedelta(seconds=10),
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": (protocol,),
    }


def _create_topics(asking: Asking) -> Fields:
    wanted = asking.part(
        "create_topics",
        5,
        "CreatableTopic",
        name="new",
        num_partitions=1,
        replication_factor=1,
        assignments=(),
        configs=(),
    )
    return {"topics": (wanted,), "timeout": SOON, "validate_only": True}


def _delete_topics(asking: Asking) -> Fields:
    if asking.version(5) < 6:
        return {"topic_names": (asking.name,), "timeout": SOON}
    named = asking.part("delete_topics", 6, "DeleteTopicState", name=asking.name, topic_id=None)
    return {"topics": (named,), "timeout": SOON}


def _delete_records(asking: Asking) -> Fields:
    wanted = asking.part("delete_records", 2, "DeleteRecordsPartition", partition_index=0, offset=0)
    named = asking.part(
        "delete_records", 2, "DeleteRecordsTopic", name=asking.name, partitions=(wanted,)
    )
    return {"topics": (named,), "timeout": SOON}


def _epochs(asking: Asking) -> Fields:
    wanted = asking.part(
        "offset_for_leader_epoch",
        4,
        "OffsetForLeaderPartition",
        partition=0,
        current_leader_epoch=-1,
        leader_epoch=0,
    )
    named = asking.part(
        "offset_for_leader_epoch",
        4,
        "OffsetForLeaderTopic",
        topic=asking.name,
        partitions=(wanted,),
    )
    return {"replica_id": -2, "topics": (named,)}


def _add_partitions(asking: Asking) -> Fields:
    named = asking.part(
        "add_partitions_to_txn", 3, "AddPartitionsToTxnTopic", name=asking.name, partitions=(0,)
    )
    if asking.version(3) >= 4:
        one = asking.part(
            "add_partitions_to_txn",
            4,
            "AddPartitionsToTxnTransaction",
            transactional_id="x",
            producer_id=1,
            producer_epoch=0,
            verify_only=False,
            topics=(named,),
        )
        return {"transactions": (one,)}
    return {
        "v3_and_below_transactional_id": "x",
        "v3_and_below_producer_id": 1,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": (named,),
    }


_OF_PRODUCER: Fields = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}


def _markers(asking: Asking) -> Fields:
    named = asking.part(
        "write_txn_markers", 1, "WritableTxnMarkerTopic", name=asking.name, partition_indexes=(0,)
    )
    marker = asking.part(
        "write_txn_markers",
        1,
        "WritableTxnMarker",
        producer_id=1,
        producer_epoch=0,
        transaction_result=False,
        topics=(named,),
        coordinator_epoch=-1,
    )
    return {"markers": (marker,)}


def _txn_offsets(asking: Asking) -> Fields:
    wanted = asking.part(
        "txn_offset_commit",
        3,
        "TxnOffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=0,
        committed_leader_epoch=-1,
        committed_metadata="",
    )
    named = asking.part(
        "txn_offset_commit",
        3,
        "TxnOffsetCommitRequestTopic",
        name=asking.name,
        partitions=(wanted,),
    )
    return _OF_PRODUCER | {
        "group_id": "g",
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": (named,),
    }


ANY_ACL: Fields = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


_VOTER: Fields = {"cluster_id": None, "voter_id": 5, "voter_directory_id": uuid.UUID(int=7)}


def _log_dirs(asking: Asking) -> Fields:
    api = "alter_replica_log_dirs"
    named = asking.part(api, 2, "AlterReplicaLogDirTopic", name=asking.name, partitions=(0,))
    return {"dirs": (asking.part(api, 2, "AlterReplicaLogDir", path="/", topics=(named,)),)}


def _elections(asking: Asking) -> Fields:
    named = asking.part("elect_leaders", 2, "TopicPartitions", topic=asking.name, partitions=(0,))
    return {"election_type": 0, "topic_partitions": (named,), "timeout": SOON}


def _reassignments(asking: Asking) -> Fields:
    api = "alter_partition_reassignments"
    one = asking.part(api, 1, "ReassignablePartition", partition_index=0, replicas=(1,))
    named = asking.part(api, 1, "ReassignableTopic", name=asking.name, partitions=(one,))
    return {"timeout": SOON, "allow_replication_factor_change": True, "topics": (named,)}


def _create_acls(asking: Asking) -> Fields:
    wanted = asking.part(
        "create_acls",
        3,
        "AclCreation",
        resource_type=2,
        resource_name="other",
        resource_pattern_type=3,
        principal="User:bob",
        host="*",
        operation=3,
        permission_type=3,
    )
    return {"creations": (wanted,)}


def _quotas(asking: Asking) -> Fields:
    part = partial(asking.part, "alter_client_quotas", 1)
    entity = part("EntityData", entity_type="user", entity_name="u")
    op = part("OpData", key="producer_byte_rate", value=1000.0, remove=False)
    entry = part("EntryData", entity=(entity,), ops=(op,))
    return {"entries": (entry,), "validate_only": False}


def _delete_acls(asking: Asking) -> Fields:
    wanted = ANY_ACL | {"resource_name_filter": "other"}
    return {"filters": (asking.part("delete_acls", 3, "DeleteAclsFilter", **wanted),)}


def _configs(api: str, version: int, kind: str) -> Callable[[Asking], Fields]:
    def fields(asking: Asking) -> Fields:
        resource = asking.part(
            api,
            version,
            kind,
            resource_type=2,
            resource_name=asking.name,
            configuration_keys=None,
            configs=(),
        )
        return {
            "resources": (resource,),
            "include_synonyms": False,
            "include_documentation": False,
            "validate_only": True,
        }

    return fields


def _partitions(asking: Asking) -> Fields:
    wanted = asking.part(
        "create_partitions",
        3,
        "CreatePartitionsTopic",
        name=asking.name,
        count=2,
        assignments=None,
    )
    return {"topics": (wanted,), "timeout": SOON, "validate_only": True}


def _offset_delete(asking: Asking) -> Fields:
    wanted = asking.part("offset_delete", 0, "OffsetDeleteRequestPartition", partition_index=0)
    named = asking.part(
        "offset_delete", 0, "OffsetDeleteRequestTopic", name=asking.name, partitions=(wanted,)
    )
    return {"group_id": "g", "topics": (named,)}


def _producers(asking: Asking) -> Fields:
    named = asking.part(
        "describe_producers", 0, "TopicRequest", name=asking.name, partition_indexes=(0,)
    )
    return {"topics": (named,)}


def _beat(asking: Asking) -> Fields:
    return {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": timedelta(seconds=10),
        "subscribed_topic_names": (asking.name,),
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": (),
    }


def _streams_beat(asking: Asking) -> Fields:
    subtopology = asking.part(
        "streams_group_heartbeat",
        0,
        "Subtopology",
        subtopology_id="0",
        source_topics=(asking.name,),
        state_changelog_topics=(),
        repartition_sink_topics=(),
        repartition_source_topics=(),
        copartition_groups=(),
    )
    topology = asking.part(
        "streams_group_heartbeat", 0, "Topology", epoch=0, subtopologies=(subtopology,)
    )
    return {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "endpoint_information_epoch": 0,
        "rebalance_timeout": timedelta(minutes=1),
        "topology": topology,
        "active_tasks": (),
        "standby_tasks": (),
        "warmup_tasks": (),
        "process_id": "p",
        "client_tags": None,
        "task_offsets": None,
        "task_end_offsets": None,
    }


def _pages(asking: Asking) -> Fields:
    named = asking.part("describe_topic_partitions", 0, "TopicRequest", name=asking.name)
    return {"topics": (named,), "response_partition_limit": 10, "cursor": None}


_OF_MEMBER: Fields = {
    "group_id": "g",
    "member_id": "m",
    "share_session_epoch": 0,
    "topics": (),
}


def _share_offsets(asking: Asking) -> Fields:
    wanted = asking.part(
        "describe_share_group_offsets",
        0,
        "DescribeShareGroupOffsetsRequestGroup",
        group_id="g",
        topics=None,
    )
    return {"groups": (wanted,)}


def _other_share_offsets(asking: Asking) -> Fields:
    wanted = asking.part(
        "alter_share_group_offsets",
        0,
        "AlterShareGroupOffsetsRequestPartition",
        partition_index=0,
        start_offset=0,
    )
    named = asking.part(
        "alter_share_group_offsets",
        0,
        "AlterShareGroupOffsetsRequestTopic",
        topic_name=asking.name,
        partitions=(wanted,),
    )
    return {"group_id": "g", "topics": (named,)}


def _scram(asking: Asking) -> Fields:
    gone = asking.part(
        "alter_user_scram_credentials", 0, "ScramCredentialDeletion", name="bob", mechanism=1
    )
    return {"deletions": (gone,), "upsertions": ()}


READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE

CASES: dict[str, Case] = {
    "produce": Case(9, _produce, (topic(WRITE),), of_topic, names_topic=True),
    "fetch": Case(12, _fetch, (topic(READ),), of_topic, names_topic=True),
    "list_offsets": Case(7, _list_offsets, (topic(DESCRIBE),), of_topic, names_topic=True),
    "metadata": Case(9, _metadata, (topic(DESCRIBE),), of_topic, names_topic=True),
    "offset_commit": Case(
        8, _offset_commit, (group(READ), topic(READ)), of_group, names_topic=True
    ),
    "offset_fetch": Case(
        9, _offset_fetch, (group(DESCRIBE), topic(DESCRIBE)), of_group, names_topic=True
    ),
    "find_coordinator": Case(
        4,
        lambda _: {"key_type": 0, "coordinator_keys": ("g",), "key": "g"},
        (group(DESCRIBE),),
        of_group,
    ),
    "join_group": Case(5, _join, (group(READ),), of_group),
    "heartbeat": Case(
        4,
        lambda _: {
            "group_id": "g",
            "generation_id": 1,
            "member_id": "m",
            "group_instance_id": None,
        },
        (group(READ),),
        of_group,
    ),
    "leave_group": Case(
        5, lambda _: {"group_id": "g", "members": (), "member_id": "m"}, (group(READ),), of_group
    ),
    "sync_group": Case(
        5,
        lambda _: {
            "group_id": "g",
            "generation_id": 1,
            "member_id": "m",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "p",
            "assignments": (),
        },
        (group(READ),),
        of_group,
    ),
    "describe_groups": Case(
        5,
        lambda _: {"groups": ("g",), "include_authorized_operations": True},
        (group(DESCRIBE),),
        of_group,
    ),
    "list_groups": Case(5, lambda _: {"states_filter": (), "types_filter": ()}),
    "api_versions": Case(
        3, lambda _: {"client_software_name": "a", "client_software_version": "1"}
    ),
    "create_topics": Case(5, _create_topics, (topic(Operation.CREATE, "new"),), of_topic),
    "delete_topics": Case(
        5,
        _delete_topics,
        (topic(Operation.DELETE),),
        of_topic,
        names_topic=True,
    ),
    "delete_records": Case(
        2, _delete_records, (topic(Operation.DELETE),), of_topic, names_topic=True
    ),
    "init_producer_id": Case(
        4,
        lambda _: (
            _OF_PRODUCER | {"transaction_timeout": SOON, "producer_id": -1, "producer_epoch": -1}
        ),
        (transaction(WRITE),),
        of_id,
    ),
    "offset_for_leader_epoch": Case(4, _epochs, (topic(DESCRIBE),), of_topic, names_topic=True),
    "add_partitions_to_txn": Case(
        3, _add_partitions, (transaction(WRITE), topic(WRITE)), of_id, names_topic=True
    ),
    "add_offsets_to_txn": Case(
        3,
        lambda _: _OF_PRODUCER | {"group_id": "g"},
        (transaction(WRITE), group(READ)),
        of_id,
    ),
    "end_txn": Case(3, lambda _: _OF_PRODUCER | {"committed": True}, (transaction(WRITE),), of_id),
    "write_txn_markers": Case(
        1, _markers, (cluster(Operation.ALTER),), of_cluster, names_topic=True
    ),
    "txn_offset_commit": Case(
        3, _txn_offsets, (transaction(WRITE), group(READ), topic(READ)), of_id, names_topic=True
    ),
    "describe_acls": Case(3, lambda _: ANY_ACL, (cluster(DESCRIBE),), of_cluster),
    "create_acls": Case(3, _create_acls, (cluster(Operation.ALTER),), of_cluster),
    "delete_acls": Case(3, _delete_acls, (cluster(Operation.ALTER),), of_cluster),
    "describe_configs": Case(
        4,
        _configs("describe_configs", 4, "DescribeConfigsResource"),
        (topic(Operation.DESCRIBE_CONFIGS),),
        of_topic,
        names_topic=True,
    ),
    "alter_configs": Case(
        2,
        _configs("alter_configs", 2, "AlterConfigsResource"),
        (topic(Operation.ALTER_CONFIGS),),
        of_topic,
        names_topic=True,
    ),
    "incremental_alter_configs": Case(
        1,
        _configs("incremental_alter_configs", 1, "AlterConfigsResource"),
        (topic(Operation.ALTER_CONFIGS),),
        of_topic,
        names_topic=True,
    ),
    "describe_log_dirs": Case(4, lambda _: {"topics": None}, (cluster(DESCRIBE),), of_cluster),
    "alter_replica_log_dirs": Case(2, _log_dirs, (cluster(Operation.ALTER),), of_cluster),
    "elect_leaders": Case(2, _elections, (cluster(Operation.ALTER),), of_cluster),
    "alter_partition_reassignments": Case(
        1, _reassignments, (cluster(Operation.ALTER),), of_cluster
    ),
    "list_partition_reassignments": Case(
        0, lambda _: {"timeout": SOON, "topics": None}, (cluster(DESCRIBE),), of_cluster
    ),
    "describe_quorum": Case(2, lambda _: {"topics": ()}, (cluster(DESCRIBE),), of_cluster),
    "describe_client_quotas": Case(
        1,
        lambda _: {"components": (), "strict": False},
        (cluster(Operation.DESCRIBE_CONFIGS),),
        of_cluster,
    ),
    "alter_client_quotas": Case(1, _quotas, (cluster(Operation.ALTER_CONFIGS),), of_cluster),
    "update_features": Case(
        2,
        lambda _: {"timeout": SOON, "feature_updates": (), "validate_only": True},
        (cluster(Operation.ALTER),),
        of_cluster,
    ),
    "unregister_broker": Case(
        0, lambda _: {"broker_id": 99}, (cluster(Operation.ALTER),), of_cluster
    ),
    "add_raft_voter": Case(
        1,
        lambda _: _VOTER | {"timeout": SOON, "listeners": (), "ack_when_committed": True},
        (cluster(Operation.ALTER),),
        of_cluster,
    ),
    "remove_raft_voter": Case(0, lambda _: _VOTER, (cluster(Operation.ALTER),), of_cluster),
    "create_delegation_token": Case(
        3,
        lambda _: {
            "owner_principal_type": None,
            "owner_principal_name": None,
            "renewers": (),
            "max_lifetime": SOON,
        },
    ),
    "renew_delegation_token": Case(2, lambda _: {"hmac": b"x", "renew_period": SOON}),
    "expire_delegation_token": Case(2, lambda _: {"hmac": b"x", "expiry_time_period": SOON}),
    "describe_delegation_token": Case(3, lambda _: {"owners": None}),
    "create_partitions": Case(
        3, _partitions, (topic(Operation.ALTER),), of_topic, names_topic=True
    ),
    "delete_groups": Case(
        2, lambda _: {"groups_names": ("g",)}, (group(Operation.DELETE),), of_group
    ),
    "offset_delete": Case(
        0, _offset_delete, (group(Operation.DELETE), topic(READ)), of_group, names_topic=True
    ),
    "describe_cluster": Case(
        1,
        lambda _: {
            "include_cluster_authorized_operations": True,
            "endpoint_type": 1,
            "include_fenced_brokers": False,
        },
    ),
    "describe_producers": Case(0, _producers, (topic(READ),), of_topic, names_topic=True),
    "describe_transactions": Case(
        0, lambda _: {"transactional_ids": ("x",)}, (transaction(DESCRIBE),), of_id
    ),
    "list_transactions": Case(0, lambda _: {"state_filters": (), "producer_id_filters": ()}),
    "consumer_group_heartbeat": Case(
        1, _beat, (group(READ), topic(DESCRIBE)), of_group, names_topic=True
    ),
    "consumer_group_describe": Case(
        1,
        lambda _: {"group_ids": ("g",), "include_authorized_operations": True},
        (group(DESCRIBE),),
        of_group,
    ),
    "share_group_heartbeat": Case(
        1,
        lambda asking: {
            "group_id": "g",
            "member_id": "m",
            "member_epoch": 0,
            "rack_id": None,
            "subscribed_topic_names": (asking.name,),
        },
        (group(READ), topic(DESCRIBE)),
        of_group,
        names_topic=True,
    ),
    "streams_group_heartbeat": Case(
        0, _streams_beat, (group(READ), topic(DESCRIBE)), of_group, names_topic=True
    ),
    "streams_group_describe": Case(
        0,
        lambda _: {"group_ids": ("g",), "include_authorized_operations": True},
        (group(DESCRIBE),),
        of_group,
    ),
    "share_group_describe": Case(
        1,
        lambda _: {"group_ids": ("g",), "include_authorized_operations": True},
        (group(DESCRIBE),),
        of_group,
    ),
    "share_fetch": Case(
        1,
        lambda _: (
            _OF_MEMBER
            | {
                "max_wait": timedelta(0),
                "min_bytes": 0,
                "max_bytes": 1 << 20,
                "max_records": 1,
                "batch_size": 1,
                "forgotten_topics_data": (),
            }
        ),
        (group(READ),),
        of_group,
    ),
    "share_acknowledge": Case(1, lambda _: _OF_MEMBER, (group(READ),), of_group),
    "describe_share_group_offsets": Case(0, _share_offsets, (group(DESCRIBE),), of_group),
    "alter_share_group_offsets": Case(0, _other_share_offsets, (group(READ),), of_group),
    "delete_share_group_offsets": Case(
        0, lambda _: {"group_id": "g", "topics": ()}, (group(Operation.DELETE),), of_group
    ),
    "sasl_handshake": Case(1, lambda _: {"mechanism": "PLAIN"}),
    "sasl_authenticate": Case(2, lambda _: {"auth_bytes": b""}),
    "describe_user_scram_credentials": Case(
        0, lambda _: {"users": ()}, (cluster(DESCRIBE),), of_cluster
    ),
    "alter_user_scram_credentials": Case(0, _scram, (cluster(Operation.ALTER),), of_cluster),
    "list_config_resources": Case(
        1, lambda _: {"resource_types": ()}, (cluster(Operation.DESCRIBE_CONFIGS),), of_cluster
    ),
    "describe_topic_partitions": Case(0, _pages, (topic(DESCRIBE),), of_topic, names_topic=True),
}


def errors(answer: Any) -> Iterator[str]:
    """The names of all errors in an answer, at any depth."""
    for field in dataclasses.fields(answer):
        value = getattr(answer, field.name)
        if field.name.endswith("error_code") and field.name != "topic_config_error_code":
            if value.value:
                yield value.name
        elif isinstance(value, tuple):
            for item in value:
                if dataclasses.is_dataclass(item):
                    yield from errors(item)
