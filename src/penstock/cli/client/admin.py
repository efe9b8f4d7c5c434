"""Topics and their configs, by request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from penstock.cli.client.cluster import Client
from penstock.cli.client.errors import check
from penstock.kafka.wire.schema import build

DEFAULT_COUNT: Final = -1
"""Partitions or replicas as the server's settings say (KIP-464)."""
_TOPIC_RESOURCE: Final = 2
_SET: Final = 0
_DELETE: Final = 1
_OWN_SOURCE: Final = 1
_WAIT: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """One config of a topic; `is_own` when it was set on the topic itself."""

    name: str
    value: str
    is_own: bool


def create_topic(
    client: Client, name: str, *, partitions: int = DEFAULT_COUNT, configs: Mapping[str, str]
) -> int:
    """Create a topic.

    Returns:
        Its number of partitions, or -1 where the server does not say.

    Raises:
        RefusedError: it exists, or something about it is not allowed.
    """
    response = client.controller().request(
        "create_topics",
        lambda types: build(
            types.CreateTopicsRequest,
            topics=(
                build(
                    types.CreatableTopic,
                    name=name,
                    num_partitions=partitions,
                    # Before version 4 there is no default for replicas; one is what a server has.
                    replication_factor=DEFAULT_COUNT,
                    assignments=(),
                    configs=tuple(
                        build(types.CreatableTopicConfig, name=key, value=value)
                        for key, value in configs.items()
                    ),
                ),
            ),
            timeout=_WAIT,
            validate_only=False,
        ),
    )
    (result,) = response.topics
    check("create topic", name, result.error_code, result.error_message)
    return int(getattr(result, "num_partitions", DEFAULT_COUNT))


def delete_topic(client: Client, name: str) -> None:
    """Delete a topic and its records. Raises: RefusedError."""
    response = client.controller().request(
        "delete_topics",
        lambda types: build(types.DeleteTopicsRequest, topic_names=(name,), timeout=_WAIT),
    )
    (result,) = response.responses
    check("delete topic", name, result.error_code, getattr(result, "error_message", None))


def add_partitions(client: Client, name: str, *, total: int) -> None:
    """Raise a topic's number of partitions to `total`. Raises: RefusedError."""
    response = client.controller().request(
        "create_partitions",
        lambda types: build(
            types.CreatePartitionsRequest,
            topics=(build(types.CreatePartitionsTopic, name=name, count=total, assignments=None),),
            timeout=_WAIT,
            validate_only=False,
        ),
    )
    (result,) = response.results
    check("add partitions", name, result.error_code, result.error_message)


def alter_configs(
    client: Client, name: str, *, set_values: Mapping[str, str], delete_names: Sequence[str]
) -> None:
    """Set some configs of a topic and give others back to their defaults. Raises: RefusedError."""
    response = client.controller().request(
        "incremental_alter_configs",
        lambda types: build(
            types.IncrementalAlterConfigsRequest,
            resources=(
                build(
                    types.AlterConfigsResource,
                    resource_type=_TOPIC_RESOURCE,
                    resource_name=name,
                    configs=(
                        *(
                            build(
                                types.AlterableConfig, name=key, config_operation=_SET, value=value
                            )
                            for key, value in set_values.items()
                        ),
                        *(
                            build(
                                types.AlterableConfig,
                                name=key,
                                config_operation=_DELETE,
                                value=None,
                            )
                            for key in delete_names
                        ),
                    ),
                ),
            ),
            validate_only=False,
        ),
    )
    (result,) = response.responses
    check("alter configs", name, result.error_code, result.error_message)


def describe_configs(client: Client, name: str) -> list[ConfigValue]:
    """A topic's configs in effect, by name. Raises: RefusedError."""
    response = client.any().request(
        "describe_configs",
        lambda types: build(
            types.DescribeConfigsRequest,
            resources=(
                build(
                    types.DescribeConfigsResource,
                    resource_type=_TOPIC_RESOURCE,
                    resource_name=name,
                    configuration_keys=None,
                ),
            ),
            include_synonyms=False,
            include_documentation=False,
        ),
    )
    (result,) = response.results
    check("describe configs", name, result.error_code, result.error_message)
    return sorted(
        (
            ConfigValue(
                name=row.name, value=row.value or "", is_own=row.config_source == _OWN_SOURCE
            )
            for row in result.configs
        ),
        key=lambda config: config.name,
    )
