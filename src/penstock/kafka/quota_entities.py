"""Entities of quotas as requests name them: by types and names, and filters of them. Pure."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError
from penstock.security.acl import plain_host
from penstock.security.quota import CLIENT_ID, DEFAULT, IP, TYPES, USER, QuotaEntity

if TYPE_CHECKING:
    from kio.schema.describe_client_quotas.v1.request import ComponentData

EXACT: Final = 0
DEFAULTS: Final = 1
SPECIFIED: Final = 2


def entity_of(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity of types and names; a name that is None is the default.

    Raises:
        ItemError: a type is unknown or there twice, or a name is empty.
    """
    named: dict[str, str] = {}
    for kind, name in parts:
        if kind not in TYPES:
            known = ", ".join(TYPES)
            raise ItemError(
                ErrorCode.INVALID_REQUEST, f"entity type {kind!r} is unknown: there are {known}"
            )
        if kind in named:
            raise ItemError(ErrorCode.INVALID_REQUEST, f"the entity has two names of type {kind}")
        if name == "":
            raise ItemError(ErrorCode.INVALID_REQUEST, f"the name of the {kind} is empty")
        named[kind] = DEFAULT if name is None else plain_host(name) if kind == IP else name
    return QuotaEntity(named.get(USER), named.get(CLIENT_ID), named.get(IP))


class EntityFilter(NamedTuple):
    """Finds entities."""

    names: dict[str, str | None]
    """The types that an entity must have, with the name; None: any."""
    is_strict: bool
    """It must have no other types."""

    def finds(self, entity: QuotaEntity) -> bool:
        """Whether an entity is one of those."""
        parts = dict(entity.parts())
        if self.is_strict and len(parts) != len(self.names):
            return False
        return all(
            kind in parts and (name is None or parts[kind] == name)
            for kind, name in self.names.items()
        )


def filter_of(components: "Iterable[ComponentData]", *, is_strict: bool) -> EntityFilter:
    """Return the filter that a request asks for.

    Raises:
        ItemError: there is no such filter.
    """
    names: dict[str, str | None] = {}
    for one in components:
        kind = one.entity_type
        if not kind:
            raise ItemError(ErrorCode.INVALID_REQUEST, "an entity type of the filter is empty")
        if kind in names:
            raise ItemError(ErrorCode.INVALID_REQUEST, f"the filter has entity type {kind} twice")
        if kind not in TYPES:
            raise ItemError(ErrorCode.UNSUPPORTED_VERSION, f"entity type {kind!r} is unknown")
        names[kind] = _name(kind, one.match_type, one.match)
    if IP in names and len(names) > 1:
        raise ItemError(
            ErrorCode.INVALID_REQUEST, "a filter of ip can't ask for a user or a client id, too"
        )
    return EntityFilter(names, is_strict)


def _name(kind: str, match_type: int, match: str | None) -> str | None:
    if match_type not in (EXACT, DEFAULTS, SPECIFIED):
        raise ItemError(ErrorCode.INVALID_REQUEST, f"match type {match_type} is unknown")
    if match_type == EXACT:
        if match is None:
            raise ItemError(ErrorCode.INVALID_REQUEST, f"the filter of {kind} lacks the name")
        return plain_host(match) if kind == IP else match
    if match is not None:
        raise ItemError(
            ErrorCode.INVALID_REQUEST,
            f"the filter of {kind} has a name, which only an exact match has",
        )
    return DEFAULT if match_type == DEFAULTS else None
