"""AlterConfigs and IncrementalAlterConfigs but for what each makes of a resource's configs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.kafka import confirmed as fresh
from penstock.kafka.admin.commit import commit
from penstock.kafka.admin.resources import (
    ResourceType,
    check_access,
    check_broker_name,
    check_configs,
    check_group_configs,
    replacement,
    unknown_topic,
)
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError, Outcome, duplicates
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.encode import EncodedParts, Entity
from penstock.security.acl import Operation
from penstock.state.commands import (
    AlterClusterConfigs,
    AlterGroupConfigs,
    AlterTopicConfigs,
    AnyCommand,
)

if TYPE_CHECKING:
    from kio.schema.alter_configs.v2 import request as whole
    from kio.schema.incremental_alter_configs.v1 import request as incremental

Resource = TypeVar(
    "Resource", bound="whole.AlterConfigsResource | incremental.AlterConfigsResource"
)
Resource_contra = TypeVar("Resource_contra", contravariant=True)


class NewConfigs(Protocol[Resource_contra]):
    """Makes a resource's new configs for one API."""

    def __call__(
        self, resource: Resource_contra, current: Mapping[str, str], *, kind: ResourceType
    ) -> dict[str, str]:
        """The resource's configs after the alteration.

        Args:
            current: its own configs now.
            kind: a topic, the cluster (BROKER), or a group.

        Raises:
            ItemError: the alteration is refused.
        """
        ...


async def alter(
    context: RequestContext,
    resources: Sequence[Resource],
    new_configs: NewConfigs[Resource],
    response_type: type[Entity],
    *,
    validate_only: bool,
) -> EncodedParts:
    """Alter configs of several resources in one commit, or only check that they could be.

    Args:
        resources: the request's.
        response_type: kio's AlterConfigsResourceResponse of the request's API and version.

    Returns:
        An encoded array of `response_type`, one for each of the request's resources.
    """
    outcomes = await _outcomes(context, resources, new_configs, apply=not validate_only)
    responses = ArrayWriter(response_type)
    async for resource, outcome in context.broker.turns.each(zip(resources, outcomes, strict=True)):
        responses.add(
            error_code=outcome.error,
            error_message=outcome.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
    return responses.encoded()


async def _outcomes(
    context: RequestContext,
    resources: Sequence[Resource],
    new_configs: NewConfigs[Resource],
    *,
    apply: bool,
) -> list[Outcome]:
    turns = context.broker.turns
    twice = await turns.run(duplicates((one.resource_type, one.resource_name) for one in resources))

    async def plan_all(certainty: fresh.Certainty) -> list[AnyCommand | Outcome]:
        plans: list[AnyCommand | Outcome] = []
        async for resource in turns.each(resources):
            if turns.spend(len(resource.configs)):
                await turns.wait()
            try:
                if (resource.resource_type, resource.resource_name) in twice:
                    raise ItemError(ErrorCode.INVALID_REQUEST, "a resource is named twice")
                check_access(
                    context.access,
                    Operation.ALTER_CONFIGS,
                    resource.resource_type,
                    resource.resource_name,
                )
                plans.append(_command(context, resource, new_configs, certainty) or Outcome())
            except ItemError as error:
                plans.append(error.outcome)
        return plans

    outcomes: list[Outcome] = []
    commands: list[AnyCommand] = []
    committed: list[int] = []
    plans = await fresh.settled(context, plan_all)
    async for index, plan in turns.each(enumerate(plans)):
        if isinstance(plan, Outcome):
            outcomes.append(plan)
        else:
            outcomes.append(Outcome())
            commands.append(plan)
            committed.append(index)
    if apply:
        for index, outcome in zip(committed, await commit(context, commands), strict=True):
            outcomes[index] = outcome
    return outcomes


def _command(
    context: RequestContext,
    resource: Resource,
    new_configs: NewConfigs[Resource],
    certainty: fresh.Certainty,
) -> AnyCommand | None:
    """The command that alters one resource; None when nothing changes.

    Raises:
        ItemError: the resource or its new configs are refused.
    """
    view = context.broker.view
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        raise ItemError(ErrorCode.INVALID_REQUEST, "a config is named twice")
    kind: int = resource.resource_type
    if kind == ResourceType.TOPIC:
        topic = view.topic(resource.resource_name)
        if topic is None:
            raise certainty.refusal(unknown_topic(resource.resource_name))
        after = new_configs(resource, topic.configs, kind=ResourceType.TOPIC)
        check_configs(after, of_topic=True)
        change = replacement(topic.configs, after)
        if not change.set and not change.unset:
            return None
        return AlterTopicConfigs(topic_id=topic.topic_id, set=change.set, unset=change.unset)
    if kind == ResourceType.BROKER:
        if not check_broker_name(resource.resource_name, context.broker.node_id):
            # Tools that end a reassignment delete the throttles that it might have set.
            if not new_configs(resource, {}, kind=ResourceType.BROKER):
                return None
            raise ItemError(
                ErrorCode.INVALID_REQUEST,
                "configs of one broker cannot be altered: the order of things is the cluster's; "
                "alter the default of all brokers (an empty name)",
            )
        after = new_configs(resource, view.cluster_configs, kind=ResourceType.BROKER)
        check_configs(after, of_topic=False)
        change = replacement(view.cluster_configs, after)
        if not change.set and not change.unset:
            return None
        return AlterClusterConfigs(set=change.set, unset=change.unset)
    if kind == ResourceType.GROUP:
        group_id: str = resource.resource_name
        if not group_id:
            raise ItemError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        own = view.group_configs.get(group_id, {})
        after = new_configs(resource, own, kind=ResourceType.GROUP)
        check_group_configs(after, context.broker.groups.settings)
        change = replacement(own, after)
        if not change.set and not change.unset:
            return None
        return AlterGroupConfigs(group_id=group_id, set=change.set, unset=change.unset)
    raise ItemError(
        ErrorCode.INVALID_REQUEST,
        f"configs of resource type {kind} cannot be altered here",
    )
