"""Applying commands about topics, partitions and configs."""

import msgspec

from penstock.model.ids import (
    PARTITION_BITS,
    PARTITION_COUNT_MAX,
    REPLICATION_FACTOR_MAX,
    TopicId,
    TopicKey,
)
from penstock.state import leftovers
from penstock.state.answers import AnyAnswer, Done, Refusal, Refused, TopicCreated
from penstock.state.apply.context import ApplyContext
from penstock.state.changes import (
    ClusterConfigsChanged,
    GroupConfigsChanged,
    TopicChanged,
    TopicDeleted,
)
from penstock.state.commands import (
    CONFIGURED_GROUPS_MAX,
    AlterClusterConfigs,
    AlterGroupConfigs,
    AlterTopicConfigs,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
)
from penstock.state.meta import CLUSTER_CONFIGS, FEATURE_LEVEL, NEXT_TOPIC_KEY
from penstock.state.schema import INTEGRITY_LEVEL, TRANSACTIONS_LEVEL
from penstock.state.tables import TopicRow, encode_json


def create_topic(context: ApplyContext, command: CreateTopic) -> AnyAnswer:
    """A new topic with empty partitions."""
    tables = context.tables
    if command.name in tables.topics_by_name or command.topic_id in tables.topics_by_id:
        return Refused(Refusal.TOPIC_EXISTS, f"topic {command.name} exists")
    if not 0 < command.partitions <= PARTITION_COUNT_MAX:
        return Refused(
            Refusal.INVALID_PARTITIONS,
            f"{command.partitions} partitions, allowed are 1 to {PARTITION_COUNT_MAX}",
        )
    factor = command.replication_factor
    if factor and tables.meta_int(FEATURE_LEVEL) < TRANSACTIONS_LEVEL:
        # A release that doesn't know the field applies the command, too.
        factor = 0
    if not 0 <= factor <= REPLICATION_FACTOR_MAX:
        return Refused(
            Refusal.MALFORMED,
            f"a replication factor of {factor}, allowed are 0 to {REPLICATION_FACTOR_MAX}",
        )
    topic_key = tables.meta_int(NEXT_TOPIC_KEY) or 1
    tables.set_meta(NEXT_TOPIC_KEY, topic_key + 1)
    topic = TopicRow(
        TopicKey(topic_key),
        TopicId(command.topic_id),
        command.name,
        command.partitions,
        dict(command.configs),
        factor,
    )
    tables.save_topic(topic)
    tables.add_partitions(topic, 0, topic.partitions)
    context.changes.append(_changed(topic))
    return TopicCreated(topic_key)


def delete_topic(context: ApplyContext, command: DeleteTopic) -> AnyAnswer:
    """The topic with all that hangs on it; its objects lose those runs, the last of them by later
    entries where there are many."""
    tables = context.tables
    topic = tables.topics_by_id.get(command.topic_id)
    if topic is None:
        return _unknown(command.topic_id)
    tables.remove_topic(topic)
    is_bounded = tables.meta_int(FEATURE_LEVEL) >= INTEGRITY_LEVEL
    rows_max = leftovers.ROWS_PER_COMMAND if is_bounded else leftovers.UNBOUNDED
    first = topic.topic_key << PARTITION_BITS
    if leftovers.clear_topic(tables, first, topic.topic_id, rows_max) >= rows_max:
        leftovers.note(tables, leftovers.TOPIC, first, topic.topic_id)
    context.changes.append(
        TopicDeleted(topic_key=topic.topic_key, topic_id=topic.topic_id, name=topic.name)
    )
    return Done()


def create_partitions(context: ApplyContext, command: CreatePartitions) -> AnyAnswer:
    """More partitions; never fewer."""
    topic = context.tables.topics_by_id.get(command.topic_id)
    if topic is None:
        return _unknown(command.topic_id)
    if not topic.partitions < command.partitions <= PARTITION_COUNT_MAX:
        return Refused(
            Refusal.INVALID_PARTITIONS,
            f"{command.partitions} partitions, the topic has {topic.partitions}",
        )
    context.tables.add_partitions(topic, topic.partitions, command.partitions)
    topic.partitions = command.partitions
    context.tables.save_topic(topic)
    context.changes.append(_changed(topic))
    return Done()


def alter_topic_configs(context: ApplyContext, command: AlterTopicConfigs) -> AnyAnswer:
    """Set some configs, unset others."""
    topic = context.tables.topics_by_id.get(command.topic_id)
    if topic is None:
        return _unknown(command.topic_id)
    topic.configs = _altered(topic.configs, command.set, command.unset)
    context.tables.save_topic(topic)
    context.changes.append(_changed(topic))
    return Done()


def alter_cluster_configs(context: ApplyContext, command: AlterClusterConfigs) -> AnyAnswer:
    """Set some cluster-wide configs, unset others."""
    tables = context.tables
    before = msgspec.json.decode(tables.meta_text(CLUSTER_CONFIGS) or "{}", type=dict[str, str])
    configs = _altered(before, command.set, command.unset)
    tables.set_meta(CLUSTER_CONFIGS, encode_json(configs))
    context.changes.append(ClusterConfigsChanged(configs=configs))
    return Done()


def alter_group_configs(context: ApplyContext, command: AlterGroupConfigs) -> AnyAnswer:
    """Set some configs of a group, unset others. A group without configs has no row."""
    tables = context.tables
    before = tables.group_configs(command.group_id)
    configs = _altered(before, command.set, command.unset)
    if configs and not before and tables.configured_groups() >= CONFIGURED_GROUPS_MAX:
        return Refused(
            Refusal.MALFORMED, f"{CONFIGURED_GROUPS_MAX} groups have configs, as many as may"
        )
    tables.save_group_configs(command.group_id, configs)
    context.changes.append(GroupConfigsChanged(group_id=command.group_id, configs=configs))
    return Done()


def _altered(before: dict[str, str], values: dict[str, str], unset: list[str]) -> dict[str, str]:
    gone = set(unset)
    return {name: value for name, value in (before | values).items() if name not in gone}


def _changed(topic: TopicRow) -> TopicChanged:
    return TopicChanged(
        topic_key=topic.topic_key,
        topic_id=topic.topic_id,
        name=topic.name,
        partitions=topic.partitions,
        configs=dict(topic.configs),
        replication_factor=topic.replication_factor,
    )


def _unknown(topic_id: bytes) -> Refused:
    return Refused(Refusal.UNKNOWN_TOPIC, f"no topic has the id {topic_id.hex()}")
