"""From a path or URL to a journal."""

from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from penstock.model.errors import InvalidRequestError
from penstock.ports.clock import Clock
from penstock.ports.journal import Journal
from penstock.ports.random import Random
from penstock.replica.sqlite_journal import SqliteJournal

_ID_BYTES = 16


class ServiceJournal(Journal, Protocol):
    """A journal that says which one it is."""

    @property
    def cluster_id(self) -> str:
        """The id that its first user gave it."""
        ...


async def open_journal(location: str, *, name: str, clock: Clock, random: Random) -> ServiceJournal:
    """Open the journal of a service, or create it.

    Args:
        location: a path or sqlite:///PATH, for the processes of one host, or a URL of PostgreSQL.
    Raises:
        InvalidRequestError: no journal has such a URL, or it is another service's.
        RetryableError: it doesn't answer.
    """

    def new_id() -> str:
        return random.token_bytes(_ID_BYTES).hex()

    scheme, is_url, _ = location.partition("://")
    if is_url and scheme in ("postgresql", "postgres"):
        from penstock.replica.postgres import PostgresJournal

        return await PostgresJournal.open(location, name=name, new_cluster_id=new_id)
    if is_url and scheme != "sqlite":
        raise InvalidRequestError(
            "open journal",
            scheme,
            "no journal has such a URL",
            "use a path, sqlite:///PATH or postgresql://...",
        )
    path = Path(unquote(urlsplit(location).path)) if is_url else Path(location)
    return await SqliteJournal.open(path, name=name, clock=clock, new_cluster_id=new_id)
