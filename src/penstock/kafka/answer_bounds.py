"""The length of an answer is bounded from its request before the answer is made.

This module bounds answers that follow from the request's own items. Answers that follow from the
catalog (topics, groups, offsets, configs) are bounded by their handlers, which look at the catalog.

A bound is never below the answer's length, and may be far above it. It is reserved for as long as
the answer is made. The lengths of JoinGroup's and SyncGroup's answers are known only once their
round has ended: their handlers reserve them then.
"""

from collections.abc import Iterable
from typing import Final

from penstock.kafka.admin.resources import topic_entries
from penstock.kafka.context import RequestContext
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.produce_codec import STEP_ITEMS, TEXTS_BYTES_MAX, ProduceRequest
from penstock.model.steps import Steps
from penstock.records.batch import RecordError

BASE_BYTES: Final = 1024
"""An answer's fields outside its items."""
TEXT_BYTES: Final = 600
"""An error's message, without what it repeats of the request."""
REPEATED: Final = 12
"""How often a byte of the request is in the answer at most: a name, and in a message as `repr` has
it, up to ten signs for four bytes."""
NODE_BYTES: Final = 600
"""A broker's host and rack."""
RECORD_ERROR_BYTES: Final = 5
"""Without its message."""
TOPIC_BYTES: Final = 24
"""A topic's id, the length of its array, and tags."""
CONFIGS_FROM: Final = 5
"""CreateTopics gives a topic's configs from this version on."""

_ECHOES: Final = {
    "heartbeat": 2,
    "leave_group": 4,
    "offset_commit": 2,
    "list_offsets": 4,
    "offset_for_leader_epoch": 3,
    "delete_records": 3,
    "delete_groups": 4,
    "offset_delete": 3,
    "init_producer_id": 2,
    "add_partitions_to_txn": 3,
    "add_offsets_to_txn": 2,
    "txn_offset_commit": 2,
    "end_txn": 2,
    "write_txn_markers": 4,
    "alter_replica_log_dirs": 4,
    "elect_leaders": 20,
    "alter_partition_reassignments": 24,
    "describe_quorum": 32,
}
"""Bytes of the answer for each of the request, where items are answered by numbers."""
_MESSAGES: Final = {
    "alter_client_quotas": ("entries",),
    "create_acls": ("creations",),
    "create_topics": ("topics",),
    "create_partitions": ("topics",),
    "delete_topics": ("topics", "topic_names"),
    "alter_configs": ("resources",),
    "incremental_alter_configs": ("resources",),
    "update_features": ("feature_updates",),
}
"""Where each item may get a message: the names that the items have in one version or another."""


def text_bytes(text: str | None) -> int:
    """Return the greatest length of an encoded string, with its length field."""
    if text is None:
        return 2
    return 5 + (len(text) if text.isascii() else 4 * len(text))


def bound_of(context: RequestContext, module: str, request: Entity, frame_bytes: int) -> int:
    """The most bytes that follow from a request's items; what the catalog adds isn't in it.

    Args:
        module: the API's, as in the registry.
        frame_bytes: length of the request's frame.
    """
    echo = _ECHOES.get(module)
    if echo is not None:
        return BASE_BYTES + echo * frame_bytes
    items = _MESSAGES.get(module)
    if items is not None:
        each = TEXT_BYTES
        if module == "create_topics" and context.api_version >= CONFIGS_FROM:
            each += _configs_bytes(context)
        return BASE_BYTES + REPEATED * frame_bytes + each * _count(request, items)
    if module == "find_coordinator":
        keys = 1 + _count(request, ("coordinator_keys",))
        return BASE_BYTES + 2 * frame_bytes + (NODE_BYTES + TEXT_BYTES) * keys
    return 0


def explanation_bytes(message: str, record_errors: Iterable[RecordError]) -> int:
    """Return the greatest length of the texts of a Produce's answer for one partition."""
    found = text_bytes(message)
    for error in record_errors:
        found += RECORD_ERROR_BYTES + text_bytes(error.message)
    return found


def produce_bound(request: ProduceRequest, partition_bytes: int) -> Steps[int]:
    """The most bytes of a Produce's answer, found in steps.

    Args:
        partition_bytes: of each partition, without texts.
    """
    found = BASE_BYTES + TEXTS_BYTES_MAX
    for start in range(0, len(request.topics), STEP_ITEMS):
        some = request.topics[start : start + STEP_ITEMS]
        for topic in some:
            found += TOPIC_BYTES + text_bytes(topic.name) + partition_bytes * len(topic.partitions)
        if start:
            yield len(some)
    return found


def _configs_bytes(context: RequestContext) -> int:
    entries = topic_entries({}, context.broker.view.cluster_configs)
    return sum(text_bytes(entry.name) + text_bytes(entry.value) + 4 for entry in entries)


def _count(request: Entity, names: Iterable[str]) -> int:
    return sum(len(getattr(request, name, ())) for name in names)
