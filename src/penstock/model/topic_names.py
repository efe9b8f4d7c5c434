"""The rules for names of topics, which are Kafka's. Pure.

Source: Kafka's docs on topic names; KAFKA-2337 for the collision of '.' and '_' in metric names.
"""

import re
from typing import Final

NAME_LENGTH_MAX: Final = 249
"""So that name, partition number and a suffix fit a file name of 255 bytes, in Kafka."""
INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)
"""The topics of Kafka's own, which no Streams program may use (Kafka's Topic.isInternal)."""
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+\Z")


def name_problem(name: str) -> str | None:
    """Say why a topic cannot have this name; None when it can."""
    if not name:
        return "the topic name is empty"
    if name in (".", ".."):
        return f"the topic name is {name!r}"
    if len(name) > NAME_LENGTH_MAX:
        return f"the topic name has {len(name)} characters, {NAME_LENGTH_MAX} are allowed"
    if _LEGAL.match(name) is None:
        return (
            f"the topic name {name!r} has characters other than ASCII letters, digits, "
            "'.', '_' and '-'"
        )
    return None


def folded(name: str) -> str | None:
    """Fold a name as Kafka's metrics do, which write '_' for '.'.

    Returns:
        The folded name, which names that collide share; None if no other name folds to this one,
        since it has neither character.
    """
    return name.replace(".", "_") if "." in name or "_" in name else None
