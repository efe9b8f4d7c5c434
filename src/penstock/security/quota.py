"""Quotas, one by one: which clients a quota is of, its keys, and which values it may have.

docs/quotas.md says what follows from many of them; `penstock.security.quota_index` finds the one
that holds. Pure.
Source: Kafka's ClientQuotaControlManager and QuotaConfig, 4.3.1 (KIP-13, 124, 546, 599, 612).
"""

import ipaddress
import math
from typing import Final

from msgspec import Struct

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

KEYS: Final = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
    CONNECTION_CREATION_RATE,
)

DEFAULT: Final = ""
"""The name of the default entity of a type: it holds for each name without a quota of its own."""
NAME_LENGTH_MAX: Final = 2_000
"""Characters of a user's name or a client id."""

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
TYPES: Final = (USER, CLIENT_ID, IP)
"""Kafka's names of the types of entities."""

_CLIENT_KEYS: Final = {
    PRODUCER_BYTE_RATE: float((1 << 63) - 1),
    CONSUMER_BYTE_RATE: float((1 << 63) - 1),
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
_IP_KEYS: Final = {CONNECTION_CREATION_RATE: float((1 << 31) - 1)}
"""The greatest value of each key whose values are whole numbers; None: any number above 0."""
_FRACTION: Final = 1e-6


class QuotaEntity(Struct, frozen=True, array_like=True, order=True):
    """The clients that a quota is of. None: the type is not part of the entity; `DEFAULT`: all
    names of the type that have none of their own."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def parts(self) -> list[tuple[str, str]]:
        """Return the types that are part of it, with their names."""
        named = zip(TYPES, (self.user, self.client_id, self.ip), strict=True)
        return [(kind, name) for kind, name in named if name is not None]

    def __str__(self) -> str:
        return ", ".join(f"{kind} {name or 'default'}" for kind, name in self.parts())


class QuotaChange(Struct, frozen=True, array_like=True, order=True):
    """One key of an entity gets a value; None: it has none any more."""

    entity: QuotaEntity
    key: str
    value: float | None


def entity_problem(entity: QuotaEntity) -> str | None:
    """Say why an entity can't have quotas; None: it can."""
    if entity.ip is not None and (entity.user is not None or entity.client_id is not None):
        return "an ip has quotas of its own alone, without a user or a client id"
    parts = entity.parts()
    if not parts:
        return "a quota is of a user, a client id, both, or an ip: the entity is empty"
    for kind, name in parts:
        if len(name) > NAME_LENGTH_MAX:
            return f"{kind} has {len(name)} characters, allowed are {NAME_LENGTH_MAX}"
    if entity.ip:
        try:
            ipaddress.ip_address(entity.ip)
        except ValueError:
            return f"{entity.ip!r} is not an IP address"
    return None


def value_problem(change: QuotaChange) -> str | None:
    """Say why a key of an entity can't get a value; None: it can. What removes a key can always."""
    value = change.value
    if value is None:
        return None
    keys = _CLIENT_KEYS if change.entity.ip is None else _IP_KEYS
    if change.key not in keys:
        return f"key {change.key!r} is unknown: there are {', '.join(keys)}"
    if not value > 0 or math.isinf(value):
        return f"{change.key} is {value:g}: it must be a number above 0"
    most = keys[change.key]
    if most is None:
        return None
    if value > most:
        return f"{change.key} is {value:g}, the greatest value is {most:.0f}"
    if value % 1.0 > _FRACTION:
        return f"{change.key} is {value:g}: it must be a whole number"
    return None
