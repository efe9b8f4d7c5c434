"""A topic config: what it is, and checks of its values. Pure. All configs are in the table of
`penstock.model.topic_config_table`.
"""

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TABLE_NAME: Final = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_TEXT_MAX: Final = 1000
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")


class ConfigType(enum.IntEnum):
    """Numbers as in DescribeConfigs responses."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Standing(enum.Enum):
    """Says what setting a config has as its consequence here."""

    HONOURED = "honoured"
    STORED = "stored"
    MEANINGLESS = "without meaning"
    REFUSED = "refused"


Check = Callable[[str], str | None]
"""Returns what is wrong with a value, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One config. `check` returns what is wrong with a value, or None."""

    name: str
    type: ConfigType
    default: str
    check: Check
    documentation: str
    standing: Standing
    reason: str = ""
    """Why it has no meaning here, or is refused."""
    synonyms: tuple[tuple[str, int], ...] = ()
    """Broker configs that give its default, strongest first, each with the factor that turns
    its unit into this config's."""

    @property
    def broker_name(self) -> str | None:
        """The broker config that sets this one's default for all topics."""
        return self.synonyms[0][0] if self.synonyms else None


def number(low: float, high: float, parse: Callable[[str], float]) -> Check:
    """Check for a number from `low` to `high`, as `parse` reads it."""

    def check(value: str) -> str | None:
        try:
            found = parse(value.strip())
        except ValueError:
            return "it is not a number"
        # A float's NaN compares false with everything, so the comparison is this way round.
        if low <= found <= high:
            return None
        return f"it must be between {low} and {high}"

    return check


def _integer(text: str) -> int:
    # Stricter than `int`, which takes underscores and the digits of every script.
    if _INTEGER.fullmatch(text) is None:
        raise ValueError(text)
    return int(text)


def int64(low: int = 0) -> Check:
    """Check for a 64-bit integer from `low` on."""
    return number(low, INT64_MAX, _integer)


def int32(low: int = 0, high: int = INT32_MAX) -> Check:
    """Check for a 32-bit integer from `low` to `high`."""
    return number(low, high, _integer)


def one_of(*allowed: str) -> Check:
    """Check for one of the values that are allowed."""

    def check(value: str) -> str | None:
        return None if value in allowed else f"it must be one of {', '.join(allowed)}"

    return check


def boolean(value: str) -> str | None:
    """Say what is wrong with a boolean."""
    return None if value.strip().lower() in ("true", "false") else "it must be true or false"


def only_false(value: str) -> str | None:
    """Say what is wrong with a boolean that can not be true here."""
    if value.strip().lower() == "true":
        return "tiered storage is disabled: all bytes are in the object store already"
    return boolean(value)


def cleanup_policy(value: str) -> str | None:
    """Say what is wrong with a list of policies."""
    policies = split_list(value)
    if len(set(policies)) != len(policies):
        return "it names a policy twice"
    if not policies or not set(policies) <= {"delete", "compact"}:
        return "it must be delete, compact, or both with a comma"
    return None


def throttled_replicas(value: str) -> str | None:
    """Say what is wrong with a list of replicas."""
    if value == "*":
        return None
    for item in split_list(value):
        partition, colon, replica = item.partition(":")
        if not (colon and partition.isdigit() and replica.isdigit()):
            return "it must be * or a list of partition:broker"
    return None


def durability(value: str) -> str | None:
    """Say what is wrong with a durability; "" leaves it to the agent."""
    if value == "quorum":
        return (
            "a quorum of buckets is not there yet: object acknowledges what is in one bucket, "
            "which itself keeps it in several places"
        )
    return one_of("", "wal", "object")(value)


def topic_name(value: str) -> str | None:
    """Say what is wrong with a topic's name; "" names none."""
    if not value or (_TOPIC_NAME.fullmatch(value) and value not in (".", "..")):
        return None
    return "a topic can't have this name"


def table_name(value: str) -> str | None:
    """Say what is wrong with a table's name; "" names none."""
    if not value or _TABLE_NAME.fullmatch(value):
        return None
    return "it is names of letters, digits and _ with dots between them"


def any_text(value: str) -> str | None:
    """Say what is wrong with a text: it may be too long."""
    return None if len(value) <= _TEXT_MAX else f"it is longer than {_TEXT_MAX} characters"


def split_list(value: str) -> list[str]:
    """Return the items of a list config."""
    return [item.strip() for item in value.split(",") if item.strip()]
