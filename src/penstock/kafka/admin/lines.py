"""One line per administrative change: who asked for it, what it changed, from what to what."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.security.acl import AclBinding, Operation, PatternType, Permission, ResourceType
from penstock.security.scram.credential import ScramMechanism
from penstock.state.acl_commands import CreateAcls, DeleteAcls
from penstock.state.commands import (
    AlterClusterConfigs,
    AlterGroupConfigs,
    AlterTopicConfigs,
    AnyCommand,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
)
from penstock.state.security_commands import DeleteCredential, SaveCredential

if TYPE_CHECKING:
    from penstock.kafka.context import RequestContext
    from penstock.state.read.view import StateView

logger = logging.getLogger(__name__)

LINES_MAX: Final = 100
"""Lines of one request; the next line says how many more changes there were."""

SHOWN_MAX: Final = 10
"""Partitions that a line names."""


def note_changes(context: "RequestContext", changes: Sequence[str], *, count: int = 0) -> None:
    """Write a line for each change that was made.

    Args:
        changes: at most `LINES_MAX`, each as `describe` gives it.
        count: how many were made, if they are more.
    """
    for change in changes[:LINES_MAX]:
        logger.info("client %r at %s %s", context.client_id, context.client_host, change)
    more = max(count, len(changes)) - len(changes[:LINES_MAX])
    if more > 0:
        logger.info(
            "client %r at %s made %d more changes by this request",
            context.client_id,
            context.client_host,
            more,
        )


def describe_first(view: "StateView", commands: Iterable[AnyCommand]) -> list[str]:
    """Describe the first `LINES_MAX` commands, by the state before they are committed."""
    return [describe(view, command) for command in islice(commands, LINES_MAX)]


def describe(view: "StateView", command: AnyCommand) -> str:
    """Say what a command changes: a sentence without its subject."""
    if isinstance(command, CreateTopic):
        configs = f" and configs {command.configs}" if command.configs else ""
        return f"created topic {command.name} with {command.partitions} partitions{configs}"
    if isinstance(command, AlterClusterConfigs):
        changed = _changed(view.cluster_configs, command.set, command.unset)
        return f"changed the configs of all brokers: {changed}"
    if isinstance(command, AlterGroupConfigs):
        own = view.group_configs.get(command.group_id, {})
        changed = _changed(own, command.set, command.unset)
        return f"changed configs of group {command.group_id}: {changed}"
    if isinstance(command, DeleteTopic):
        topic = view.topic_by_id(command.topic_id)
        name = "an unknown topic" if topic is None else f"topic {topic.name}"
        return f"deleted {name} (id {command.topic_id.hex()})"
    if isinstance(command, CreatePartitions):
        topic = view.topic_by_id(command.topic_id)
        before = "?" if topic is None else f"{topic.name}: {topic.partitions}"
        return f"changed the partitions of topic {before} -> {command.partitions}"
    if isinstance(command, AlterTopicConfigs):
        topic = view.topic_by_id(command.topic_id)
        own = {} if topic is None else topic.configs
        name = "?" if topic is None else topic.name
        return f"changed configs of topic {name}: {_changed(own, command.set, command.unset)}"
    if isinstance(command, (CreateAcls, DeleteAcls)):
        done = "created" if isinstance(command, CreateAcls) else "deleted"
        shown = "; ".join(describe_acl(one) for one in command.bindings[:SHOWN_MAX])
        return f"{done} {len(command.bindings)} access rules: {shown}"
    if isinstance(command, SaveCredential):
        # Neither salt nor keys: a log is read by more people than the journal.
        return f"set the {_mechanism(command.mechanism)} credential of user {command.user!r}"
    if isinstance(command, DeleteCredential):
        return f"deleted the {_mechanism(command.mechanism)} credential of user {command.user!r}"
    return f"committed {type(command).__name__}"


def describe_acl(binding: AclBinding) -> str:
    """Say what an access rule is."""
    verb = "may" if binding.permission == Permission.ALLOW else "must not"
    pattern = "" if binding.pattern_type == PatternType.LITERAL else " prefixed"
    return (
        f"{binding.principal!r} from {binding.host!r} {verb}"
        f" {Operation(binding.operation).name} {ResourceType(binding.resource_type).name}"
        f"{pattern} {binding.name!r}"
    )


def _mechanism(number: int) -> str:
    return ScramMechanism(number).sasl_name


def _changed(before: Mapping[str, str], new: Mapping[str, str], unset: Iterable[str]) -> str:
    changes = [(name, value) for name, value in new.items()]
    changes += [(name, "default") for name in unset]
    return ", ".join(f"{name}: {before.get(name, 'default')} -> {value}" for name, value in changes)
