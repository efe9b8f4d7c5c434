"""Order: identities that last, entries under one key, failures, restore."""

import base64
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.model.errors import (
    CorruptDataError,
    FatalStorageError,
    FencedError,
    InvalidRequestError,
    StorageFullError,
)
from penstock.order.outcome import Standing
from penstock.replica import database as database_module
from penstock.replica import replica as replica_module
from penstock.replica.database import FREE_BYTES_MIN, FREE_BYTES_MIN_TO_FREE
from penstock.replica.snapshot import JournalEntry
from penstock.state.answers import (
    BatchStatus,
    Done,
    Refusal,
    Refused,
    RunsCommitted,
    TopicCreated,
)
from penstock.state.commands import DeleteTopic, RegisterAgent, SetFeatureLevel
from penstock.state.entries import ENTRY_VERSION, Entry, encode_entry
from penstock.state.orders import LocalJournal, open_local_journal, restore
from penstock.state.pipeline_commands import CloseJob, DropTable, ExpireWriters
from penstock.state.read.queries import Queries
from penstock.state.schema import FEATURE_LEVEL_MAX, FORMAT_VERSION
from unit.state.orders import (
    TOPIC_ID,
    CountingRandom,
    TestClock,
    batch,
    commit,
    open_order,
    topic,
)


def test_a_new_file_gets_a_cluster_id_and_a_node_id_that_last(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    first = (order.cluster_id, order.agent_id)
    assert len(order.cluster_id) == 22
    assert len(base64.urlsafe_b64decode(order.cluster_id + "==")) == 16
    assert 1 <= order.agent_id < 1 << 31
    assert order.epoch == 1
    order.close()
    order = open_order(tmp_path)
    assert (order.cluster_id, order.agent_id) == first
    assert order.epoch == 2
    order.close()


def test_an_agent_id_that_is_given_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    order = open_local_journal(path, clock=TestClock(), random=CountingRandom(), agent_id=42)
    assert order.agent_id == 42
    order.close()
    order = open_local_journal(path, clock=TestClock(), random=CountingRandom())
    assert (order.agent_id, order.epoch) == (42, 2)
    order.close()


def test_answers_and_state_outlive_a_restart(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    assert order.append([topic()]).outcome.answers == [TopicCreated(1)]
    order.append([commit(batch(3))])
    order.close()
    order = open_order(tmp_path)
    applied = order.append([commit(batch(2), position=100)])
    assert applied.outcome.answers == [RunsCommitted([[BatchStatus.STORED, 3]])]
    order.close()


def entry(order: LocalJournal, n: int, *, epoch: int | None = None) -> bytes:
    return encode_entry(
        Entry(
            agent=order.agent_id,
            epoch=order.epoch if epoch is None else epoch,
            n=n,
            stamp_ms=1,
            commands=[commit(batch(1))],
        )
    )


def test_an_entry_that_comes_again_gets_its_first_answers_and_changes_nothing(
    tmp_path: Path,
) -> None:
    order = open_order(tmp_path)
    replica = order._replica
    order.append([topic()])
    first = [replica.append(entry(order, n), stamp_ms=1).outcome.answers for n in range(2, 22)]
    digest = order.digest()[1]
    for n in range(6, 22):
        again = replica.append(entry(order, n), stamp_ms=1).outcome
        assert again.standing is Standing.REPEATED
        assert again.answers == first[n - 2]
        assert again.changes == []
    assert order.digest()[1] == digest
    order.close()


def test_an_entry_too_old_or_too_new_is_refused_whole(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    replica = order._replica
    order.append([topic()])
    for n in range(2, 22):
        replica.append(entry(order, n), stamp_ms=1)
    digest = order.digest()[1]
    for n in (5, 23):
        outcome = replica.append(entry(order, n), stamp_ms=1).outcome
        assert outcome.standing is Standing.REFUSED
        (answer,) = outcome.answers
        assert isinstance(answer, Refused)
        assert answer.reason is Refusal.OUT_OF_ORDER_ENTRY
    assert order.digest()[1] == digest
    order.close()


def test_an_older_epoch_is_fenced(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    order.append([topic()])
    order._replica.append(
        encode_entry(
            Entry(
                agent=order.agent_id,
                epoch=2,
                n=0,
                stamp_ms=1,
                commands=[RegisterAgent(agent=order.agent_id)],
            )
        ),
        stamp_ms=1,
    )
    with pytest.raises(FencedError, match="epoch 1, the agent's is 2"):
        order.append([commit(batch(1))])
    order.close()


def test_an_epoch_that_was_never_opened_is_refused(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    outcome = order._replica.append(entry(order, 1, epoch=9), stamp_ms=1).outcome
    assert outcome.standing is Standing.REFUSED
    order.close()


def test_an_unknown_command_or_version_never_gets_into_the_journal(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    position = order.position
    known = entry(order, 1)
    for body in (
        known.replace(b"\xa4runs", b"\xa4nurs"),
        bytes([ENTRY_VERSION + 1]) + known[1:],
        known[:-1],
        known[:1],
    ):
        with pytest.raises(CorruptDataError, match=f"position {position + 1}"):
            order._replica.append(body, stamp_ms=1)
    assert order.position == position
    order.append([topic()])
    order.close()


def test_an_unknown_entry_in_the_journals_tail_stops_the_start(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    info = order.snapshot(tmp_path / "snapshot")
    order.append([topic()])
    order.close()
    (last,) = order.journal_after(info.position)
    tail = [JournalEntry(last.position, last.time_ms, last.body.replace(b"topic+", b"topic*"))]
    restore(tmp_path / "snapshot", tmp_path / "restored", tail=tail)
    with pytest.raises(CorruptDataError, match="position 2"):
        open_local_journal(tmp_path / "restored", clock=TestClock(), random=CountingRandom())


def test_a_feature_level_of_a_later_release_stops(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    refused = order.append([SetFeatureLevel(level=99)]).outcome.answers[0]
    assert isinstance(refused, Refused)
    assert refused.reason is Refusal.LEVEL_NOT_KNOWN
    assert order.append([SetFeatureLevel(level=1)]).outcome.answers == [Done()]
    entry = Entry(
        agent=order.agent_id,
        epoch=order.epoch + 1,
        n=0,
        stamp_ms=1,
        commands=[RegisterAgent(agent=order.agent_id, level_max=99), SetFeatureLevel(level=99)],
    )
    said = f"feature level 99, this release knows {FEATURE_LEVEL_MAX}"
    with pytest.raises(CorruptDataError, match=said):
        order._replica.append(encode_entry(entry), stamp_ms=1)
    order.close()


def test_a_full_database_leaves_no_trace_in_the_caches(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    order.append([topic(), commit(batch(1, producer=(7, 0, 0)))])
    digest = order.digest()
    connection = order._replica._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    big = "x" * 200_000
    with pytest.raises(StorageFullError):
        order.append(
            [
                commit(batch(5, producer=(7, 0, 1)), batch(5, producer=(8, 0, 0)), position=100),
                topic("other", b"x" * 16),
                topic(big, b"y" * 16),
            ]
        )
    assert order.digest() == digest
    connection.execute("PRAGMA max_page_count = 1000000")
    # The same batches get the offsets that they would have got, and the same names are free.
    applied = order.append(
        [
            commit(batch(5, producer=(7, 0, 1)), batch(5, producer=(8, 0, 0)), position=100),
            topic("other", b"x" * 16),
        ]
    )
    assert applied.outcome.answers == [RunsCommitted([[0, 1, 0, 6]]), TopicCreated(2)]
    order.close()


def test_snapshot_and_tail_make_an_order_that_goes_on(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    order.append([topic()])
    order.append([commit(batch(3, producer=(7, 0, 0)))])
    info = order.snapshot(tmp_path / "snapshot")
    order.append([commit(batch(2, producer=(7, 0, 3)), position=100)])
    restore(
        tmp_path / "snapshot", tmp_path / "restored", tail=list(order.journal_after(info.position))
    )
    copy = open_local_journal(tmp_path / "restored", clock=TestClock(), random=CountingRandom())
    # A restart of the same agent, as far as the state can tell: its next epoch.
    assert (copy.cluster_id, copy.agent_id, copy.epoch) == (order.cluster_id, order.agent_id, 2)
    applied = copy.append([commit(batch(2, producer=(7, 0, 3))), commit(batch(1), position=200)])
    assert applied.outcome.answers == [
        RunsCommitted([[BatchStatus.DUPLICATE, 3]]),
        RunsCommitted([[0, 5]]),
    ]
    copy.close()
    order.close()


def test_an_order_begins_past_the_epochs_of_agents_that_were_removed(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    order.append([topic()])
    order.close()
    # As a restore to another cluster leaves it: nobody's state, above epoch 7.
    connection = sqlite3.connect(tmp_path / "metadata.sqlite")
    connection.execute("DELETE FROM agents")
    connection.execute("DELETE FROM agent_entries")
    connection.execute("INSERT INTO meta VALUES ('agent_epoch_floor', 7)")
    connection.commit()
    connection.close()
    order = open_order(tmp_path)
    assert order.epoch == 8
    order.append([commit(batch(1))])
    order.close()


def test_a_newer_releases_file_is_refused_by_both_versions(tmp_path: Path) -> None:
    open_order(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "metadata.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    message = f"format version 99, this release knows {FORMAT_VERSION}"
    with pytest.raises(InvalidRequestError, match=message):
        open_order(tmp_path)
    with pytest.raises(InvalidRequestError, match=message):
        Queries(tmp_path / "metadata.sqlite")


def test_a_checkpoint_that_fails_after_a_commit_does_not_look_as_if_the_commit_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = open_order(tmp_path)
    order.append([topic()])
    monkeypatch.setattr(replica_module, "_CHECKPOINT_FORCED_BYTES", 0)

    def full(_: object) -> None:
        raise StorageFullError("checkpoint", "metadata", "full")

    monkeypatch.setattr(replica_module.Replica, "checkpoint", full)
    answers = [order.append([commit(batch())]).outcome.answers[0] for _ in range(3)]
    assert answers == [RunsCommitted([[BatchStatus.STORED, offset]]) for offset in range(3)]
    order.close()


def test_an_entry_that_was_applied_before_ends_the_process_rather_than_answer_for_another(
    tmp_path: Path,
) -> None:
    order = open_order(tmp_path)
    order.append([topic()])
    order.append([commit(batch())])
    order._next_n -= 1
    with pytest.raises(FatalStorageError, match="applied before"):
        order.append([commit(batch())])
    order.close()


def test_what_deletes_may_use_the_last_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = open_order(tmp_path)
    order.append([topic()])
    free = (FREE_BYTES_MIN + FREE_BYTES_MIN_TO_FREE) // 2
    volume = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096)
    monkeypatch.setattr(database_module.os, "statvfs", lambda _: volume)
    with pytest.raises(StorageFullError):
        order.append([commit(batch())])
    with pytest.raises(StorageFullError):
        order.append([DeleteTopic(topic_id=TOPIC_ID), commit(batch())])
    # A job that is over holds deletion back until it is closed.
    order.append([CloseJob(job=1), ExpireWriters(writers=[]), DropTable(topic_id=b"", table="")])
    assert order.append([DeleteTopic(topic_id=TOPIC_ID)]).outcome.answers == [Done()]
    order.close()
