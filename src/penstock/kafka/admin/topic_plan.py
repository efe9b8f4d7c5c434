"""A plan creates a topic or adds partitions: it has the checks that Kafka makes, and the ids.

Penstock keeps its bytes once, in a WAL and then in an object store, which is responsible for their
durability. A replication factor says how many replicas clients are shown
(`penstock.placement.replicas`), so it is accepted on a single broker, too, up to REPLICAS_MAX or
the number of brokers (else INVALID_REPLICATION_FACTOR). Brokers that are assigned by hand must
exist, and are as good as their number. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError
from penstock.model.errors import InvalidRequestError
from penstock.model.topic_configs import validate
from penstock.model.topic_names import name_problem
from penstock.placement.replicas import REPLICAS_MAX
from penstock.ports.random import Random

DEFAULT: Final = -1
"""A request has this in place of a partition count or a replication factor to get the default."""
_RESERVED: Final = (bytes(16), bytes(15) + b"\x01")
"""Kafka's zero id ("none") and the id of its metadata topic."""


def new_topic_id(random: Random) -> bytes:
    """A random UUID of version 4, 16 bytes, that Kafka's clients can show.

    Kafka writes ids as base64 and avoids those that begin with '-', which command lines take for
    an option; so does this.
    """
    while True:
        raw = bytearray(random.token_bytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        # In URL-safe base64 '-' stands for 62: the first six bits.
        if raw[0] >> 2 != 62 and bytes(raw) not in _RESERVED:
            return bytes(raw)


def check_new_name(name: str, similar: str | None) -> None:
    """Check the name of a topic to be created.

    Args:
        similar: another topic's name that differs in '.' for '_' alone.

    Raises:
        ItemError: INVALID_TOPIC_EXCEPTION.
    """
    problem = name_problem(name)
    if problem is not None:
        raise ItemError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if similar is not None:
        raise ItemError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name!r} collides with {similar!r}: '.' and '_' are the same in metrics",
        )


def counts(
    asked: int,
    replication_factor: int,
    assignments: Mapping[int, Sequence[int]],
    *,
    node_ids: set[int],
    default: int,
    limit: int,
) -> tuple[int, int]:
    """Return the number of partitions of a new topic, and its replication factor; 0: none was
    asked for.

    Args:
        asked: the request's number; -1: the default, or there are assignments.
        replication_factor: the request's factor; -1: the default.
        assignments: broker ids by partition index; empty: the broker chooses.
        node_ids: the ids of all brokers.

    Raises:
        ItemError: Kafka refuses the request, too.
    """
    if assignments:
        if asked != DEFAULT or replication_factor != DEFAULT:
            raise ItemError(
                ErrorCode.INVALID_REQUEST,
                "with replica assignments, partition count and replication factor must be -1",
            )
        if sorted(assignments) != list(range(len(assignments))):
            raise ItemError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "the assigned partitions must be numbered from 0 without a gap",
            )
        check_assignments(list(assignments.values()), node_ids=node_ids)
        count, factor = len(assignments), len(assignments[0])
    else:
        most = max(REPLICAS_MAX, len(node_ids))
        if replication_factor != DEFAULT and not 1 <= replication_factor <= most:
            raise ItemError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"the replication factor is {replication_factor}: ask for 1 to {most}, or -1 "
                "(durability is the storage's, not the replicas')",
            )
        factor = 0 if replication_factor == DEFAULT else replication_factor
        count = default if asked == DEFAULT else asked
    if not 1 <= count <= limit:
        raise ItemError(
            ErrorCode.INVALID_PARTITIONS,
            f"{count} partitions asked for, 1 to {limit} allowed (topic_partitions_max)",
        )
    return count, factor


def check_assignments(assignments: Sequence[Sequence[int]], *, node_ids: set[int]) -> None:
    """Check replica assignments, one list of broker ids per partition.

    Raises:
        ItemError: INVALID_REPLICA_ASSIGNMENT.
    """
    for brokers in assignments:
        if not brokers or len(set(brokers)) != len(brokers) or not set(brokers) <= node_ids:
            raise ItemError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"a partition is assigned to brokers {list(brokers)}, there are {sorted(node_ids)}",
            )


def added_partitions(
    asked: int,
    current: int,
    assignments: Sequence[Sequence[int]] | None,
    *,
    node_ids: set[int],
    limit: int,
) -> None:
    """Check a raise of a topic's partition count from `current` to `asked`.

    Raises:
        ItemError: INVALID_PARTITIONS or INVALID_REPLICA_ASSIGNMENT.
    """
    if asked <= current:
        raise ItemError(
            ErrorCode.INVALID_PARTITIONS,
            f"the topic has {current} partitions, {asked} is not more",
        )
    if asked > limit:
        raise ItemError(
            ErrorCode.INVALID_PARTITIONS,
            f"{asked} partitions asked for, {limit} allowed (topic_partitions_max)",
        )
    if assignments is None:
        return
    if len(assignments) != asked - current:
        raise ItemError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{asked - current} partitions are added, {len(assignments)} are assigned",
        )
    check_assignments(assignments, node_ids=node_ids)


def checked_configs(pairs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """The configs of a topic to be created.

    Raises:
        ItemError: INVALID_CONFIG.
    """
    configs: dict[str, str] = {}
    for name, value in pairs:
        if value is None:
            raise ItemError(ErrorCode.INVALID_CONFIG, f"the config {name} has no value")
        configs[name] = value
    try:
        validate(configs)
    except InvalidRequestError as error:
        raise ItemError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return configs
