"""DescribeConfigs 1 to 4: configs of topics and of the broker, with sources and synonyms."""

from typing import Any, Final

from penstock.kafka import fresh
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError, Outcome
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

    def look(certainty: fresh.Certainty) -> list[Outcome | list[ConfigEntry]]:
        return [_entries_or_error(context, resource, certainty) for resource in request.resources]

    results = []
    found = await fresh.settled(context, look)
    for resource, one in zip(request.resources, found, strict=True):
        error, message, entries = ErrorCode.NONE, None, list[ConfigEntry]()
        if isinstance(one, Outcome):
            error, message = one.error, one.message
        else:
            entries = one
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


def _entries_or_error(
    context: RequestContext, resource: Any, certainty: fresh.Certainty
) -> Outcome | list[ConfigEntry]:
    try:
        return _entries(context, resource, certainty)
    except ItemError as refused:
        return refused.outcome


def _entries(
    context: RequestContext, resource: Any, certainty: fresh.Certainty
) -> list[ConfigEntry]:
    """The wanted configs of one resource.

    Raises:
        ItemError: there is no such resource.
    """
    broker = context.broker
    if resource.resource_type == ResourceType.TOPIC:
        topic = broker.view.topic(resource.resource_name)
        if topic is None:
            raise certainty.refusal(unknown_topic(resource.resource_name))
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
