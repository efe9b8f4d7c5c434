"""Describes a setting beyond its name, type and default, and names the units of its bounds."""

from dataclasses import dataclass
from functools import partial
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40
INT32_MAX: Final = (1 << 31) - 1
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class About:
    """The documentation and the bounds of one setting.

    Args:
        section: the heading that it stands under in the documentation.
        text: what it does, in a sentence or two.
        least: smallest value, for numbers.
        most: largest value, for numbers.
        kafka: the broker setting of Apache Kafka with the same meaning, if there is one.
        secret: its value is never shown.
    """

    section: str
    text: str
    least: int = 0
    most: int = INT32_MAX
    kafka: str = ""
    secret: bool = False


# One for each heading.
of_addresses = partial(About, "Where it is")
of_durability = partial(About, "Durability")
of_cluster = partial(About, "Cluster")
of_storage = partial(About, "Storage")
of_security = partial(About, "Security")
of_clients = partial(About, "Clients")
of_topics = partial(About, "Topics")
of_groups = partial(About, "Groups")
of_permissions = partial(About, "Permissions")


def of_bytes(text: str, least: int, most: int = TIB, *, section: str = "Storage") -> About:
    """Describe a setting that is a number of bytes."""
    return About(section, text, least, most)
