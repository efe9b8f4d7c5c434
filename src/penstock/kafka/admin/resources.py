"""Config resources: a topic's configs, the cluster's defaults and the broker's fixed settings.

Reading them with their sources and synonyms (DescribeConfigs), and working out what an alteration
results in (AlterConfigs, IncrementalAlterConfigs). Pure, except for what the broker holds.
Source: Kafka's ConfigResource.Type, ConfigEntry.ConfigSource, AlterConfigOp.OpType; KIP-339.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.groups.settings import GroupSettings
from penstock.kafka.access import Access, refusal_text
from penstock.kafka.broker import Broker
from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError
from penstock.model.broker_configs import BROKER_CONFIGS
from penstock.model.errors import InvalidRequestError
from penstock.model.group_configs import (
    GROUP_CONFIGS,
    GroupConfig,
    effective_group,
    validate_group,
)
from penstock.model.topic_configs import (
    CLUSTER_CONFIGS,
    TOPIC_CONFIGS,
    ConfigType,
    TopicConfig,
    cluster_default,
    effective,
    validate,
    validate_cluster,
)
from penstock.model.topic_names import name_problem
from penstock.security import acl


class ResourceType(enum.IntEnum):
    """The kind of thing that has configs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Source(enum.IntEnum):
    """The source of a config's value."""

    TOPIC = 1
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class Operation(enum.IntEnum):
    """The kind of change that an incremental alteration makes."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """One place that could decide a config, strongest first."""

    name: str
    value: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One config as it stands."""

    name: str
    value: str
    source: Source
    type: ConfigType
    documentation: str
    read_only: bool = False
    synonyms: tuple[Synonym, ...] = ()


# -- access ------------------------------------------------------------------------------------


def check_access(access: Access, operation: acl.Operation, kind: int, name: str) -> None:
    """Check that a client may describe or alter the configs of a resource.

    Raises:
        ItemError: it may not.
    """
    error = ErrorCode.NONE
    if kind == ResourceType.TOPIC:
        error = access.topic(operation, name)
    elif kind == ResourceType.GROUP:
        error = access.group(operation, name)
    elif kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS):
        error = access.cluster(operation)
    if error:
        raise ItemError(error, refusal_text(error))


# -- reading -----------------------------------------------------------------------------------


def topic_entries(
    topic_configs: Mapping[str, str], cluster_configs: Mapping[str, str]
) -> list[ConfigEntry]:
    """All configs of a topic, by name."""
    return [
        topic_entry(config, topic_configs, cluster_configs) for config in TOPIC_CONFIGS.values()
    ]


def topic_entry(
    config: TopicConfig, topic_configs: Mapping[str, str], cluster_configs: Mapping[str, str]
) -> ConfigEntry:
    """One config of a topic."""
    synonyms = []
    own = topic_configs.get(config.name)
    if own is not None:
        synonyms.append(Synonym(name=config.name, value=own, source=Source.TOPIC))
    synonyms.extend(_default_synonyms(config, cluster_configs))
    return ConfigEntry(
        name=config.name,
        value=effective(config, topic_configs, cluster_configs),
        source=synonyms[0].source if synonyms else Source.DEFAULT,
        type=config.type,
        documentation=config.documentation,
        synonyms=tuple(synonyms),
    )


def _default_synonyms(config: TopicConfig, cluster_configs: Mapping[str, str]) -> list[Synonym]:
    synonyms = []
    from_cluster = cluster_default(config, cluster_configs)
    if from_cluster is not None:
        name, value = from_cluster
        synonyms.append(Synonym(name=name, value=value, source=Source.DYNAMIC_DEFAULT_BROKER))
    if config.broker_name is not None:
        synonyms.append(
            Synonym(name=config.broker_name, value=config.default, source=Source.DEFAULT)
        )
    return synonyms


def _dynamic_entry(
    name: str, value: str | None, default: str | None, type_: ConfigType, documentation: str
) -> ConfigEntry:
    """Return the entry of a config that is set for all brokers, or has a default, or both."""
    synonyms = []
    if value is not None:
        synonyms.append(Synonym(name=name, value=value, source=Source.DYNAMIC_DEFAULT_BROKER))
    if default is not None:
        synonyms.append(Synonym(name=name, value=default, source=Source.DEFAULT))
    return ConfigEntry(
        name=name,
        value=synonyms[0].value,
        source=synonyms[0].source,
        type=type_,
        documentation=documentation,
        synonyms=tuple(synonyms),
    )


def broker_entries(broker: Broker, *, only_dynamic: bool) -> list[ConfigEntry]:
    """The broker's configs, by name.

    Args:
        only_dynamic: only what was set as the cluster's default (Kafka: the entity "").
    """
    cluster_configs = broker.view.cluster_configs
    entries = []
    for name, (config, factor) in sorted(CLUSTER_CONFIGS.items()):
        value = cluster_configs.get(name)
        if value is None and (only_dynamic or name != config.broker_name):
            continue
        default = config.default if factor == 1 else None
        documentation = f"Default of {config.name} for all topics. {config.documentation}"
        entries.append(_dynamic_entry(name, value, default, config.type, documentation))
    for name, config in BROKER_CONFIGS.items():
        value = cluster_configs.get(name)
        if value is None and only_dynamic:
            continue
        entries.append(
            _dynamic_entry(name, value, config.default, config.type, config.documentation)
        )
    if not only_dynamic:
        entries.extend(_fixed_entries(broker))
    return entries


def _fixed_entries(broker: Broker) -> list[ConfigEntry]:
    settings = broker.settings
    rows: Sequence[tuple[str, str, ConfigType, str]] = (
        (
            "advertised.listeners",
            ",".join(
                f"{each.name}://{each.advertised_host}:{each.advertised_port}"
                for each in broker.listeners
            )
            or f"PLAINTEXT://{broker.advertised_host}:{broker.advertised_port}",
            ConfigType.LIST,
            "The addresses at which clients reach this broker.",
        ),
        (
            "auto.create.topics.enable",
            "true" if settings.auto_create_topics else "false",
            ConfigType.BOOLEAN,
            "Whether asking for a topic's metadata may create it.",
        ),
        (
            "broker.id",
            str(broker.node_id),
            ConfigType.INT,
            "The node id, by which clients know this server.",
        ),
        (
            "default.replication.factor",
            str(broker.nodes.replicas("").count(0)),
            ConfigType.INT,
            "Replicas of a topic that asks for none: one for each zone. The storage is durable.",
        ),
        ("delete.topic.enable", "true", ConfigType.BOOLEAN, "Topics can be deleted."),
        ("log.dirs", settings.log_dir, ConfigType.LIST, "The data directory."),
        (
            "max.connections",
            str(settings.connections_max),
            ConfigType.INT,
            "Connections at one time.",
        ),
        ("node.id", str(broker.node_id), ConfigType.INT, "The node id."),
        (
            "num.partitions",
            str(settings.default_partitions),
            ConfigType.INT,
            "Partitions of a topic that is created without a number.",
        ),
        (
            "socket.request.max.bytes",
            str(settings.request_bytes_max),
            ConfigType.INT,
            "The largest request, in bytes.",
        ),
        (
            "transaction.max.timeout.ms",
            str(settings.transaction_timeout_max_ms),
            ConfigType.INT,
            "The longest time-out of a transaction that a producer may ask for.",
        ),
        (
            "transactional.id.expiration.ms",
            str(settings.transactional_id_expiration_ms),
            ConfigType.INT,
            "After this time without a transaction a transactional id is forgotten.",
        ),
    )
    return [
        ConfigEntry(
            name=name,
            value=value,
            source=Source.STATIC_BROKER,
            type=kind,
            documentation=documentation,
            read_only=True,
            synonyms=(Synonym(name=name, value=value, source=Source.STATIC_BROKER),),
        )
        for name, value, kind, documentation in rows
    ]


def group_entries(own: Mapping[str, str], defaults: Mapping[str, str]) -> list[ConfigEntry]:
    """All configs of a group, by name.

    Args:
        own: the group's.
        defaults: the server's settings, by the names of group configs.
    """
    entries = []
    for config in GROUP_CONFIGS.values():
        synonyms = []
        if config.name in own:
            synonyms.append(Synonym(name=config.name, value=own[config.name], source=Source.GROUP))
        synonyms.append(_group_default(config, defaults))
        entries.append(
            ConfigEntry(
                name=config.name,
                value=effective_group(config.name, own, defaults),
                source=synonyms[0].source,
                type=config.type,
                documentation=config.documentation,
                synonyms=tuple(synonyms),
            )
        )
    return entries


def _group_default(config: GroupConfig, defaults: Mapping[str, str]) -> Synonym:
    value = effective_group(config.name, {}, defaults)
    source = Source.DEFAULT if value == config.default else Source.STATIC_BROKER
    return Synonym(name=config.broker_name or config.name, value=value, source=source)


def check_broker_name(name: str, node_id: int) -> bool:
    """Check the name of a broker resource; whether it is the cluster-wide default, "".

    Raises:
        ItemError: INVALID_REQUEST: neither "" nor this broker's id.
    """
    if name == "":
        return True
    if name != str(node_id):
        raise ItemError(
            ErrorCode.INVALID_REQUEST,
            f"unexpected broker id {name!r}: it is {node_id}, or empty for all brokers",
        )
    return False


# -- altering ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """The configs to set and unset so that a resource's configs become what the client asked
    for."""

    set: dict[str, str]
    unset: list[str]


def replacement(current: Mapping[str, str], wanted: Mapping[str, str]) -> Alteration:
    """Make `wanted` the whole of the resource's configs (AlterConfigs)."""
    return Alteration(
        set={name: value for name, value in wanted.items() if current.get(name) != value},
        unset=sorted(name for name in current if name not in wanted),
    )


def increment(
    current: Mapping[str, str],
    operations: Sequence[tuple[str, int, str | None]],
    *,
    kind: ResourceType,
    cluster_configs: Mapping[str, str],
) -> dict[str, str]:
    """The resource's configs after incremental operations.

    Args:
        current: its own configs now.
        operations: (config, operation, value), each config once.
        kind: whose configs the names are.
        cluster_configs: the defaults that appending and subtracting start from.

    Raises:
        ItemError: INVALID_REQUEST or INVALID_CONFIG.
    """
    after = dict(current)
    for name, code, value in operations:
        try:
            operation = Operation(code)
        except ValueError:
            raise ItemError(
                ErrorCode.INVALID_REQUEST, f"unknown operation {code} on {name}"
            ) from None
        if operation is Operation.DELETE:
            after.pop(name, None)
            continue
        if value is None:
            raise ItemError(ErrorCode.INVALID_REQUEST, f"the config {name} has no value")
        if operation is not Operation.SET and kind is ResourceType.GROUP:
            raise ItemError(
                ErrorCode.INVALID_CONFIG,
                f"Can't {operation.name} to key {name} because its type is not LIST.",
            )
        if operation is Operation.SET:
            after[name] = value
            continue
        of_topic = kind is ResourceType.TOPIC
        config = TOPIC_CONFIGS.get(name) if of_topic else CLUSTER_CONFIGS.get(name, (None, 1))[0]
        if config is None or config.type is not ConfigType.LIST:
            raise ItemError(
                ErrorCode.INVALID_CONFIG, f"{operation.name} needs a list, {name} is none"
            )
        before = after.get(name)
        if before is None:
            before = effective(config, {}, cluster_configs)
        after[name] = _edit_list(before, value, operation)
    return after


def _edit_list(before: str, value: str, operation: Operation) -> str:
    items = [item.strip() for item in before.split(",") if item.strip()]
    given = [item.strip() for item in value.split(",") if item.strip()]
    if operation is Operation.APPEND:
        items.extend(item for item in dict.fromkeys(given) if item not in items)
    else:
        items = [item for item in items if item not in given]
    return ",".join(items)


def check_configs(configs: Mapping[str, str], *, of_topic: bool) -> None:
    """Check the whole of a resource's configs.

    Raises:
        ItemError: INVALID_CONFIG.
    """
    try:
        if of_topic:
            validate(configs)
        else:
            validate_cluster(configs)
    except InvalidRequestError as error:
        raise ItemError(ErrorCode.INVALID_CONFIG, str(error)) from error


def check_group_configs(configs: Mapping[str, str], settings: GroupSettings) -> None:
    """Check the whole of a group's configs.

    Raises:
        ItemError: INVALID_CONFIG.
    """
    try:
        validate_group(configs, settings.group_defaults)
    except InvalidRequestError as error:
        raise ItemError(ErrorCode.INVALID_CONFIG, error.detail) from error


def unknown_topic(name: str) -> ItemError:
    """The error for a topic that does not exist, or could not."""
    problem = name_problem(name)
    if problem is not None:
        return ItemError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    return ItemError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
