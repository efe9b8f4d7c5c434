"""DescribeConfigs 1 to 4: configs of topics, the broker and groups, with sources and synonyms.

A resource that is named more than once is described once, with all configs that were asked for.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import ModuleType
from typing import TYPE_CHECKING, Final

from penstock.kafka import confirmed as fresh
from penstock.kafka.admin.resources import (
    ConfigEntry,
    ResourceType,
    broker_entries,
    check_access,
    check_broker_name,
    group_entries,
    topic_entry,
    unknown_topic,
)
from penstock.kafka.answer_bounds import BASE_BYTES, REPEATED, TEXT_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer, LongAnswer
from penstock.kafka.outcomes import CHEAP, ItemError
from penstock.kafka.replies import SMALL_ANSWER_BYTES
from penstock.kafka.wire.encode import EncodedParts, Entity
from penstock.kafka.wire.primitives import count_bytes
from penstock.kafka.wire.schema import build, encode_response, response_types
from penstock.model.topic_configs import TOPIC_CONFIGS, TopicConfig
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest

FLEXIBLE_FROM: Final = 4
RESOURCE_BYTES_MAX: Final = 40 << 10
"""All configs of a broker, or of a topic that has none of its own, with documentation."""
RESULT_BYTES: Final = 300
PART_BYTES: Final = 8
"""Bytes of memory per resource, and per config of it that others have as well."""
ALL: Final = frozenset[str]()
"""Stands for all configs where a set of names is expected."""
ENCODED_MAX: Final = 1_000
"""Values of configs that are kept while a request is answered."""


async def handle(context: RequestContext, request: "DescribeConfigsRequest") -> Answer:
    """Describe each resource, or say why not."""
    description = _Description(context, request)
    bound = await description.bound()
    waiting = context.reserve_answer(bound)
    if waiting is not None:
        return waiting
    response = await fresh.settled(context, description.look)
    if bound <= SMALL_ANSWER_BYTES:
        return response
    return LongAnswer(response, held_bytes=description.held_bytes)


class _Description:
    """One request. What is said of a config is encoded once for each value: most topics have most
    configs as the defaults have them, and a console asks for all topics."""

    def __init__(self, context: RequestContext, request: "DescribeConfigsRequest") -> None:
        self._context = context
        self._request = request
        self._types = response_types("describe_configs", context.api_version)
        self._flexible = context.api_version >= FLEXIBLE_FROM
        self._cluster_configs: Mapping[str, str] = {}
        self._encoded: dict[tuple[str, str | None], bytes] = {}
        self.held_bytes = 0
        """Roughly the memory that the answer takes, in bytes."""

    async def bound(self) -> int:
        """The most bytes of the answer."""
        broker = self._context.broker
        joined = await self._joined()
        if len(joined) * RESOURCE_BYTES_MAX <= SMALL_ANSWER_BYTES:
            return len(joined) * RESOURCE_BYTES_MAX
        found = BASE_BYTES
        as_default = {config.name: len(self._part(config, {})) for config in TOPIC_CONFIGS.values()}
        all_as_default = sum(as_default.values())
        async for (kind, name), keys in broker.turns.each(joined.items()):
            # A message repeats the name.
            found += TEXT_BYTES + REPEATED * text_bytes(name)
            if kind in {ResourceType.BROKER, ResourceType.GROUP}:
                found += RESOURCE_BYTES_MAX
            topic = broker.view.topic(name) if kind == ResourceType.TOPIC else None
            if topic is None:
                continue
            found += sum(as_default.get(key, 0) for key in keys) if keys else all_as_default
            for key, value in topic.configs.items():
                found += 2 * (text_bytes(value) + text_bytes(key))
        return found

    async def look(self, certainty: fresh.Certainty) -> Entity:
        """Describe as of now, each resource once."""
        turns = self._context.broker.turns
        results = []
        async for (kind, name), keys in turns.each((await self._joined()).items()):
            error, message, configs = ErrorCode.NONE, None, EncodedParts()
            try:
                configs = self._configs(kind, name, keys, certainty)
            except ItemError as refused:
                error, message = refused.outcome.error, refused.outcome.message
            self.held_bytes += RESULT_BYTES + PART_BYTES * len(configs)
            if turns.spend(len(configs) // CHEAP):
                await turns.wait()
            results.append(
                build(
                    self._types.DescribeConfigsResult,
                    error_code=error,
                    error_message=message,
                    resource_type=kind,
                    resource_name=name,
                    configs=configs or self._array([]),
                )
            )
        return build(self._types.DescribeConfigsResponse, results=tuple(results))

    async def _joined(self) -> dict[tuple[int, str], AbstractSet[str]]:
        """Return the names of the wanted configs by type and name of the resource; none: all
        configs."""
        turns = self._context.broker.turns
        joined: dict[tuple[int, str], AbstractSet[str]] = {}
        async for resource in turns.each(self._request.resources):
            key = (resource.resource_type, resource.resource_name)
            # None and none at all both ask for everything; names that do not exist are passed over.
            keys = frozenset(resource.configuration_keys or ())
            known = joined.get(key)
            joined[key] = keys if known is None else known | keys if known and keys else ALL
            if turns.spend(len(keys) // CHEAP):
                await turns.wait()
        return joined

    def _configs(
        self, kind: int, name: str, keys: AbstractSet[str], certainty: fresh.Certainty
    ) -> EncodedParts:
        """The wanted configs of one resource.

        Raises:
            ItemError: the resource doesn't exist, or the client may not see its configs.
        """
        broker = self._context.broker
        check_access(self._context.access, Operation.DESCRIBE_CONFIGS, kind, name)
        if kind == ResourceType.TOPIC:
            topic = broker.view.topic(name)
            if topic is None:
                raise certainty.refusal(unknown_topic(name))
            return self._of_topic(topic.configs, keys)
        if kind == ResourceType.GROUP:
            if not name:
                raise ItemError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            own = broker.view.group_configs.get(name, {})
            found = group_entries(own, broker.groups.settings.group_defaults)
            return self._array([self._entry(one) for one in found if not keys or one.name in keys])
        if kind != ResourceType.BROKER:
            raise ItemError(
                ErrorCode.INVALID_REQUEST, f"configs of resource type {kind} are not kept here"
            )
        only_dynamic = check_broker_name(name, broker.node_id)
        entries = broker_entries(broker, only_dynamic=only_dynamic)
        return self._array([self._entry(one) for one in entries if not keys or one.name in keys])

    def _of_topic(self, own: Mapping[str, str], keys: AbstractSet[str]) -> EncodedParts:
        return self._array(
            [
                self._part(config, own)
                for config in TOPIC_CONFIGS.values()
                if not keys or config.name in keys
            ]
        )

    def _part(self, config: TopicConfig, own: Mapping[str, str]) -> bytes:
        """Encode one config of a topic."""
        cluster_configs = self._context.broker.view.cluster_configs
        if cluster_configs is not self._cluster_configs:  # the first look, or changed meanwhile
            self._cluster_configs = cluster_configs
            self._encoded.clear()
        elif len(self._encoded) > ENCODED_MAX:
            self._encoded.clear()
        value = own.get(config.name)
        part = self._encoded.get((config.name, value))
        if part is None:
            part = self._entry(topic_entry(config, own, cluster_configs))
            self._encoded[config.name, value] = part
        return part

    def _array(self, parts: Sequence[bytes]) -> EncodedParts:
        return EncodedParts((count_bytes(len(parts), flexible=self._flexible), *parts))

    def _entry(self, entry: ConfigEntry) -> bytes:
        encoded = encode_response(_config(self._types, entry, self._request))
        self.held_bytes += len(encoded)
        return encoded


def _config(types: ModuleType, entry: ConfigEntry, request: "DescribeConfigsRequest") -> Entity:
    synonyms = entry.synonyms if request.include_synonyms else ()
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
        documentation=entry.documentation if request.include_documentation else None,
    )
