"""DescribeConfigs 1 to 4: configs of topics and of the broker, with sources and synonyms."""

from typing import Any, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError
from penstock.kafka.resources import (
    ConfigEntry,
    ResourceType,
    broker_entries,
    check_broker_name,
    topic_entries,
    unknown_topic,
)
from penstock.kafka.schema import build, response_types

API_KEY: Final = 32
VERSIONS: Final = range(1, 5)


async def handle(context: RequestContext, request: Any) -> Any:
    """Describe each resource, or say why not."""
    types = response_types("describe_configs", context.api_version)
    results = []
    for resource in request.resources:
        error, message, entries = ErrorCode.NONE, None, list[ConfigEntry]()
        try:
            entries = _entries(context, resource)
        except ItemError as refused:
            error, message = refused.outcome.error, refused.outcome.message
        results.append(
            build(
                types.DescribeConfigsResult,
                error_code=error,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=tuple(_config(types, entry, request) for entry in entries),
            )
        )
    return build(types.DescribeConfigsResponse, results=tuple(results))


def _entries(context: RequestContext, resource: Any) -> list[ConfigEntry]:
    """The wanted configs of one resource.

    Raises:
        ItemError: there is no such resource.
    """
    broker = context.broker
    if resource.resource_type == ResourceType.TOPIC:
        topic = broker.view.topic(resource.resource_name)
        if topic is None:
            raise unknown_topic(resource.resource_name)
        entries = topic_entries(topic.configs, broker.view.cluster_configs)
    elif resource.resource_type == ResourceType.BROKER:
        only_dynamic = check_broker_name(resource.resource_name, broker.node_id)
        entries = broker_entries(broker, only_dynamic=only_dynamic)
    else:
        raise ItemError(
            ErrorCode.INVALID_REQUEST,
            f"configs of resource type {resource.resource_type} are not kept here",
        )
    # None and none at all both ask for everything; names that do not exist are passed over.
    if not resource.configuration_keys:
        return entries
    wanted = set(resource.configuration_keys)
    return [entry for entry in entries if entry.name in wanted]


def _config(types: Any, entry: ConfigEntry, request: Any) -> Any:
    synonyms = entry.synonyms if request.include_synonyms else ()
    documented = getattr(request, "include_documentation", False)
    return build(
        types.DescribeConfigsResourceResult,
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=False,
        synonyms=tuple(
            build(types.DescribeConfigsSynonym, name=one.name, value=one.value, source=one.source)
            for one in synonyms
        ),
        config_type=entry.type,
        documentation=entry.documentation if documented else None,
    )
