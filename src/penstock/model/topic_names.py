"""Which names a topic may have, as Kafka rules it. Pure.

Source: Kafka's docs on topic names; KAFKA-2337 for the collision of '.' and '_' in metric names.
"""

import re
from typing import Final

NAME_LENGTH_MAX: Final = 249
"""So that name, partition number and a suffix fit a file name of 255 bytes, in Kafka."""
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+\Z")


def name_problem(name: str) -> str | None:
    """Why a topic cannot have this name; None when it can."""
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
    """What names have in common that Kafka's metrics can't tell apart: '_' for '.'; None: this one
    has neither, so that no other is taken for it."""
    return name.replace(".", "_") if "." in name or "_" in name else None
