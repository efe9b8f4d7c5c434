"""All quotas of a cluster, and the one that holds for a client. Pure.

For each key the most specific entity that has it decides, in Kafka's order: user and client id,
user and default client id, user, default user and client id, default user and default client id,
default user, client id, default client id. Clients for which the same entity decides share a rate
only where they have the same name of each type that the entity names: a default is a limit for
each client, not for all of them together.
Source: Kafka's ClientQuotaManager (DefaultQuotaCallback) and ConnectionQuotas, 4.3.1.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from penstock.security.acl import plain_host
from penstock.security.quota import (
    CONNECTION_CREATION_RATE,
    DEFAULT,
    QuotaChange,
    QuotaEntity,
)

FOUND_MAX: Final = 10_000
"""Clients and keys whose limit is kept at hand."""
_NONE: Final[Mapping[str, float]] = {}


class Limit(NamedTuple):
    """A client's limit for one key."""

    rate: float
    """The quota's value, per second."""
    shared_by: QuotaEntity
    """All clients with this value share the rate."""


class QuotaIndex:
    """Quotas by entity."""

    def __init__(self) -> None:
        self._by_entity: dict[QuotaEntity, dict[str, float]] = {}
        self._counts: Counter[str] = Counter()
        self._found: dict[tuple[str, str, str], Limit | None] = {}
        """The limits that were looked for since the last change: each request looks again."""

    def __len__(self) -> int:
        """Return the number of entities that have quotas."""
        return len(self._by_entity)

    def __contains__(self, entity: QuotaEntity) -> bool:
        return entity in self._by_entity

    def has(self, key: str) -> bool:
        """Whether any entity has a value for a key."""
        return self._counts[key] > 0

    def entities(self) -> Iterator[tuple[QuotaEntity, Mapping[str, float]]]:
        """Iterate over the entities with their quotas by key, in no order."""
        return iter(self._by_entity.items())

    def quotas_of(self, entity: QuotaEntity) -> Mapping[str, float]:
        """Return an entity's own quotas by key."""
        return self._by_entity.get(entity, _NONE)

    def replace(self, quotas: Iterable[QuotaChange]) -> None:
        """Take these for all that there are."""
        self._by_entity.clear()
        self._counts.clear()
        self.change(quotas)

    def change(self, changes: Iterable[QuotaChange]) -> None:
        """Apply changes, in their order."""
        self._found.clear()
        for change in changes:
            own = self._by_entity.setdefault(change.entity, {})
            known = change.key in own
            if change.value is not None:
                own[change.key] = change.value
                self._counts[change.key] += not known
            elif known:
                del own[change.key]
                self._counts[change.key] -= 1
            if not own:
                del self._by_entity[change.entity]

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """Return a client's limit for a key; None: it has none.

        Args:
            user: the principal's name without its type.
            client_id: "" where the client names none.
        """
        if not self._counts[key]:
            return None
        asked = (key, user, client_id)
        if asked in self._found:
            return self._found[asked]
        if len(self._found) >= FOUND_MAX:
            self._found.clear()
        found = self._found[asked] = self._search(key, user, client_id)
        return found

    def connection_limit(self, address: str) -> Limit | None:
        """Return how many connections per second an address may open; None: any number."""
        if not self._counts[CONNECTION_CREATION_RATE]:
            return None
        own = QuotaEntity(ip=plain_host(address))
        for entity in (own, QuotaEntity(ip=DEFAULT)):
            rate = self._by_entity.get(entity, _NONE).get(CONNECTION_CREATION_RATE)
            if rate is not None:
                return Limit(rate, own)
        return None

    def _search(self, key: str, user: str, client_id: str) -> Limit | None:
        both = QuotaEntity(user, client_id)
        of_user, of_client = QuotaEntity(user), QuotaEntity(None, client_id)
        for entity, shared_by in (
            (both, both),
            (QuotaEntity(user, DEFAULT), both),
            (of_user, of_user),
            (QuotaEntity(DEFAULT, client_id), both),
            (QuotaEntity(DEFAULT, DEFAULT), both),
            (QuotaEntity(DEFAULT), of_user),
            (of_client, of_client),
            (QuotaEntity(None, DEFAULT), of_client),
        ):
            rate = self._by_entity.get(entity, _NONE).get(key)
            if rate is not None:
                return Limit(rate, shared_by)
        return None
