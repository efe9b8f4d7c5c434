"""A restored cluster's journal is begun whole or not at all, and never in another cluster's."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from penstock.model.errors import (
    ConflictError,
    InvalidRequestError,
    RetryableError,
)
from penstock.replica.beginning import Beginning, encode_beginning
from penstock.replica.postgres import begin
from penstock.replica.postgres.begin import begin_journal
from penstock.replica.postgres.settings import PostgresSettings
from penstock.replica.postgres.statements import Statements

OURS = "restored-cluster-00001"
BEGINNING = Beginning(cluster_id=OURS, position=1, digest=bytes(32))


class Database:
    """Stands in for a connection's steps; each script is what the next try meets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *tries: Callable[[], str]) -> None:
        self._tries = iter(tries)
        self.steps: list[Any] = []
        self.open = 0
        for name in ("connect", "check_durability", "open_tables"):
            monkeypatch.setattr(begin, name, getattr(self, name))

    async def connect(self, url: str, *, timeout_s: float) -> Any:
        self.steps.append(("connect", url, timeout_s))
        self.open += 1
        return SimpleNamespace(pgconn=SimpleNamespace(finish=self._finish))

    def _finish(self) -> None:
        self.open -= 1

    async def check_durability(self, connection: Any, *, allow_fsync_off: bool) -> None:
        self.steps.append(("check", allow_fsync_off))

    async def open_tables(
        self, connection: Any, statements: Statements, name: str, first_rows: Any
    ) -> str:
        self.steps.append(("open", name, first_rows()))
        return next(self._tries)()


def fails(error: BaseException) -> Callable[[], str]:
    def fail() -> str:
        raise error

    return fail


def begun(settings: PostgresSettings | None = None) -> None:
    asyncio.run(begin_journal("db", name="log", beginning=BEGINNING, settings=settings))


def test_a_journal_is_begun_by_one_statement_on_a_durable_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database = Database(monkeypatch, lambda: OURS)
    settings = PostgresSettings(allow_fsync_off=True)
    begun(settings)
    rows = (Statements("log").begin, (OURS, encode_beginning(BEGINNING)))
    assert database.steps == [
        ("connect", "db", settings.connect_timeout_s),
        ("check", True),
        ("open", "log", rows),
    ]
    assert not database.open


@pytest.mark.parametrize(
    "lost", [TimeoutError(), psycopg.OperationalError("gone"), RetryableError("a", "b", "c")]
)
def test_an_answer_that_was_lost_is_asked_for_once_more(
    monkeypatch: pytest.MonkeyPatch, lost: Exception
) -> None:
    """The first try may have made it: a restore that fails then would leave a whole cluster."""
    database = Database(monkeypatch, fails(lost), lambda: OURS)
    begun()
    assert [step[0] for step in database.steps] == ["connect", "check", "open"] * 2
    assert not database.open


def test_a_database_that_does_not_answer_twice_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = fails(psycopg.OperationalError("gone"))
    database = Database(monkeypatch, gone, gone, lambda: OURS)
    with pytest.raises(RetryableError, match="gone"):
        begun()
    assert len(database.steps) == 6
    assert not database.open


@pytest.mark.parametrize("tries", [1, 2])
def test_another_cluster_s_journal_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    lost = [fails(TimeoutError())] * (tries - 1)
    Database(monkeypatch, *lost, lambda: "another-cluster-000001")
    with pytest.raises(ConflictError, match="of cluster another-cluster-000001"):
        begun()


def test_a_database_that_is_not_durable_is_not_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(monkeypatch, fails(InvalidRequestError("use", "journal", "fsync is off")))
    with pytest.raises(InvalidRequestError, match="fsync"):
        begun()
    assert len(database.steps) == 3
    assert not database.open


def test_a_database_that_hangs_is_given_up_after_two_calls_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[float] = []

    def timeout(limit_s: float) -> Any:
        limits.append(limit_s)
        return asyncio.Timeout(None)

    Database(monkeypatch, lambda: OURS)
    monkeypatch.setattr(asyncio, "timeout", timeout)
    begun(PostgresSettings(call_timeout_s=7))
    assert limits == [14]
