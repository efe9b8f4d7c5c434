"""What an agent does with the replica that it finds, and when it makes another."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.log.opening import cluster as cluster_opening
from penstock.log.opening.cluster import open_cluster_order
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    FatalStorageError,
    InvalidRequestError,
    JournalOlderError,
    NotFoundError,
    OtherClusterError,
    PenstockError,
    RetryableError,
)
from penstock.order.protocol import AgentIdentity
from penstock.ports.journal import JournalHead, JournalRow
from penstock.replica.archive_format import SnapshotName
from penstock.replica.beginning import Beginning, encode_beginning
from penstock.replica.bootstrap import Bootstrapped
from penstock.replica.marks import RowMark
from support.simulated.clock import ManualClock
from support.simulated.inline_executor import InlineExecutor
from support.simulated.randomness import SeededRandom

CLUSTER = "some-cluster-0000001"
ROW = JournalRow(7, 5, b"row")
BEGINNING = Beginning(cluster_id=CLUSTER, position=1, digest=bytes(32))
MADE = Bootstrapped(SnapshotName(6, "0123456789abcdef"), 6, 5)

Step = Callable[[], Any]


def fails(error: BaseException) -> Step:
    def fail() -> Any:
        raise error

    return fail


def malformed() -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


CORRUPT = CorruptDataError("open", "replica", "a bit flipped")
OLDER = JournalOlderError("follow", "journal", "older")
LAGS = NotFoundError("bootstrap", "archive", "no such snapshot")


class Rig:
    """Stands in for what opening calls: `opens` and `makes` are what its tries meet, in order, and
    the last again and again. `steps`: what was called."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.path = folder / "replica.sqlite"
        self.opens: list[Step] = [lambda: "order"]
        self.makes: list[Step] = [lambda: MADE]
        self.steps: list[Any] = []
        self.replicas = 0
        """Open ones."""
        self.rows: dict[int, JournalRow] = {ROW.position: ROW}
        self.first = 1
        self.mark: RowMark | None = RowMark.of(ROW)
        self.differs = False
        self.wal: Any = None
        self.wal_checks: Step = lambda: None
        self.refusal: Step = lambda: None
        self.waits: list[float] = []
        self.bootstraps: list[dict[str, Any]] = []
        self.lost: list[Any] = []
        for name in (
            "bootstrap",
            "check_wal_name",
            "read_mark",
            "refuse_others_wal",
            "set_aside",
            "set_aside_if_different",
            "wait",
        ):
            patch.setattr(cluster_opening, name, getattr(self, "_" + name))
        patch.setattr(cluster_opening.Replica, "open", self._open_replica)
        patch.setattr(cluster_opening, "begin_cluster_order", self._open_order)

    def there(self) -> "Rig":
        """A replica lies there."""
        self.path.touch()
        return self

    async def row(self, position: int) -> JournalRow | None:
        return self.rows.get(position)

    async def head(self) -> JournalHead:
        return JournalHead(9, self.first, 5)

    def _open_replica(self, path: Path, machine: Any, **options: Any) -> Any:
        assert options == {"fsync": False, "keeps_journal": False}
        self.replicas += 1
        return SimpleNamespace(path=path, close=self._close)

    def _close(self) -> None:
        self.replicas -= 1

    async def _open_order(self, journal: Any, replica: Any, machine: Any, **options: Any) -> Any:
        assert options["cluster_id"] == CLUSTER
        self.steps.append("open")
        return following(self.opens)()

    async def _bootstrap(self, archive: Any, path: Path, machine: Any, **options: Any) -> Any:
        assert path == self.path
        self.steps.append("make")
        options["history"].lost += self.lost
        self.bootstraps.append(options)
        return following(self.makes)()

    def _check_wal_name(self, wal: Any, cluster_id: str) -> None:
        self.steps.append(("check WAL", wal, cluster_id))
        self.wal_checks()

    def _refuse_others_wal(self, wal: Any, cluster_id: str, *, of: str) -> None:
        self.steps.append(("refuse WAL", wal, cluster_id, of))
        self.refusal()

    def _read_mark(self, path: Path) -> RowMark | None:
        return self.mark

    def _set_aside(self, path: Path) -> Path:
        assert path == self.path
        assert not self.replicas, "it is closed first"
        self.steps.append("aside")
        return path.with_name("lost.sqlite")

    def _set_aside_if_different(self, path: Path) -> bool:
        self.steps.append("compare note")
        return self.differs

    async def _wait(self, seconds: float) -> None:
        self.waits.append(seconds)

    def open(self) -> Any:
        return asyncio.run(
            open_cluster_order(
                cast(Any, self),
                cast(Any, "archive"),
                self.path,
                identity=AgentIdentity(agent_id=1),
                cluster_id=CLUSTER,
                clock=ManualClock(now_ms=5),
                random=SeededRandom(1),
                executor=InlineExecutor(SeededRandom(1)),
                wal=self.wal,
            )
        )

    def opened(self) -> list[Any]:
        """Open, and what was called after the look at the note."""
        assert self.open() == "order"
        assert self.replicas == 1
        return self.steps[self.steps.index("compare note") + 1 :]

    def refused(self, error: type[PenstockError], match: str | None = None) -> list[Any]:
        with pytest.raises(error, match=match):
            self.open()
        assert not self.replicas
        return self.steps


def following(steps: list[Step]) -> Step:
    return steps.pop(0) if len(steps) > 1 else steps[0]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path, monkeypatch)


def test_a_replica_that_can_be_used_is_used(rig: Rig) -> None:
    assert rig.there().opened() == ["open"]


def test_where_there_is_none_one_is_made(rig: Rig) -> None:
    assert rig.opened() == ["make", "open"]


def test_another_cluster_s_wal_is_refused_before_anything_is_touched(rig: Rig) -> None:
    rig.there().wal = "wal"
    rig.wal_checks = fails(OtherClusterError("open", "wal", "of another", cluster_id="other"))
    assert rig.refused(OtherClusterError) == [("check WAL", "wal", CLUSTER)]


def test_a_replica_that_differed_is_named_and_another_is_made(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.differs = True
    assert rig.opened() == ["make", "open"]
    assert "kept as" in caplog.text


def test_of_one_that_did_not_nothing_is_said(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.opened()
    assert not caplog.text


@pytest.mark.parametrize("has_wal", [True, False])
def test_another_cluster_s_replica_is_dropped_unless_its_wal_lies_beside_it(
    rig: Rig, *, has_wal: bool
) -> None:
    other = OtherClusterError("open", "replica", "of another", cluster_id="other-cluster-00001")
    rig.there().opens = [fails(other), lambda: "order"]
    if not has_wal:
        assert rig.opened() == ["open", "make", "open"]
        return
    rig.wal = "wal"
    refused = ("refuse WAL", "wal", CLUSTER, "other-cluster-00001")
    assert rig.opened() == ["open", refused, "make", "open"]


def test_another_cluster_s_wal_without_a_name_is_found_by_its_replica(rig: Rig) -> None:
    other = OtherClusterError("open", "replica", "of another", cluster_id="other-cluster-00001")
    rig.there().opens = [fails(other)]
    rig.wal, rig.refusal = "wal", fails(other)
    assert "make" not in rig.refused(OtherClusterError)


@pytest.mark.parametrize(
    "error",
    [
        CORRUPT,
        malformed(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        InvalidRequestError("open", "replica", "of a newer release"),
        NotFoundError("read journal", "position 3", "trimmed"),
    ],
)
def test_one_that_cannot_be_used_is_made_anew(rig: Rig, error: Exception) -> None:
    rig.there().opens = [fails(error), lambda: "order"]
    assert rig.opened() == ["open", "make", "open"], "the journal holds its last row"


@pytest.mark.parametrize(
    "error",
    [
        RetryableError("open", "journal", "away"),
        FatalStorageError("open", "replica", "an I/O error"),
        ConflictError("open", "replica", "in use"),
    ],
)
def test_one_that_may_be_right_stays(rig: Rig, error: PenstockError) -> None:
    rig.there().opens = [fails(error)]
    assert rig.refused(type(error)) == ["compare note", "open"]


@pytest.mark.parametrize("is_made", [True, False])
def test_one_of_a_history_that_the_journal_has_lost_is_set_aside(
    rig: Rig, *, is_made: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if not is_made:
        rig.there()
    rig.opens = [fails(OLDER)]
    steps = rig.refused(JournalOlderError)
    assert steps == ["compare note", *(["make"] if is_made else []), "open", "aside"]
    assert "lost.sqlite" in caplog.text


NONE: dict[int, JournalRow] = {}


@pytest.mark.parametrize(
    ("rows", "first", "mark", "is_kept"),
    [
        ({7: ROW}, 1, RowMark.of(ROW), False),
        ({7: ROW}, 1, RowMark(7, 5, 1), True),
        ({7: ROW}, 8, RowMark(7, 5, 1), True),
        ({7: ROW}, 1, None, True),
        (NONE, 1, RowMark.of(ROW), True),
        (NONE, 7, RowMark.of(ROW), True),
        (NONE, 8, RowMark.of(ROW), False),  # trimmed behind a verified snapshot
    ],
)
def test_a_damaged_one_is_kept_unless_the_journal_holds_or_held_its_last_row(
    rig: Rig, rows: dict[int, JournalRow], first: int, mark: RowMark | None, *, is_kept: bool
) -> None:
    rig.there().opens = [fails(CORRUPT), lambda: "order"]
    rig.rows, rig.first, rig.mark = rows, first, mark
    assert rig.opened() == ["open", *(["aside"] if is_kept else []), "make", "open"]


def test_one_of_a_newer_release_is_never_kept(rig: Rig) -> None:
    newer = InvalidRequestError("open", "replica", "of a newer release")
    rig.there().opens = [fails(newer), lambda: "order"]
    rig.rows = {}
    assert rig.opened() == ["open", "make", "open"]


@pytest.mark.parametrize("error", [LAGS, CORRUPT])
@pytest.mark.parametrize("failures", [1, 3, 4])
def test_an_archive_that_seems_not_whole_is_listed_again(
    rig: Rig, error: PenstockError, failures: int
) -> None:
    """Its listing may name what was deleted since, and not yet for whose sake."""
    rig.makes = [*[fails(error)] * failures, lambda: MADE]
    if failures == 4:
        assert rig.refused(type(error)).count("make") == 4
    else:
        assert rig.opened().count("make") == failures + 1
    assert rig.waits == [0.5, 1.5, 3.0][:failures]


def test_a_store_that_is_away_is_not_asked_again(rig: Rig) -> None:
    rig.makes = [fails(RetryableError("list", "store", "away"))]
    assert rig.refused(RetryableError).count("make") == 1
    assert not rig.waits


def test_it_is_made_up_to_the_journal_s_first_row(rig: Rig) -> None:
    rig.first = 5
    rig.opened()
    (options,) = rig.bootstraps
    assert options["apply_to"] == 4
    assert options["beginning"] is None
    assert options["history"].head == JournalHead(9, 5, 5)


def restored(rig: Rig, beginning: Beginning) -> None:
    rig.first = 2
    rig.rows = {1: JournalRow(1, 5, encode_beginning(beginning))}


def test_a_restored_one_begins_with_what_its_journal_names(rig: Rig) -> None:
    restored(rig, BEGINNING)
    rig.opened()
    assert [options["beginning"] for options in rig.bootstraps] == [BEGINNING]


def test_a_journal_that_begins_as_another_cluster_s_is_not_followed(rig: Rig) -> None:
    restored(rig, Beginning(cluster_id="another-cluster-00001", position=1, digest=bytes(32)))
    rig.refused(InvalidRequestError, "the row there is of cluster another-cluster-00001")
    assert not rig.bootstraps


def test_without_the_snapshot_that_it_begins_with_the_start_is_tried_again(rig: Rig) -> None:
    restored(rig, BEGINNING)
    rig.makes = [lambda: None]
    rig.refused(RetryableError, BEGINNING.snapshot.key)
    assert "open" not in rig.steps


@pytest.mark.parametrize("lost_count", [0, 2])
def test_nothing_is_no_beginning_of_a_journal_that_was_trimmed(rig: Rig, lost_count: int) -> None:
    rig.first, rig.makes, rig.lost = 2, [lambda: None], [1] * lost_count
    with pytest.raises(NotFoundError, match="begins at position 2") as caught:
        rig.open()
    assert ("2 are of a history that the journal has lost" in str(caught.value)) == (lost_count > 0)
    assert "open" not in rig.steps
    assert len(rig.waits) == 3


def test_a_whole_journal_is_begun_with_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.makes = [lambda: None]
    with caplog.at_level(logging.INFO):
        assert rig.opened() == ["make", "open"]
    assert "replica made of nothing" in caplog.text
