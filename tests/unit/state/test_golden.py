"""Golden files of each format version: they open, hold what they held, and replay to the same."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.model.ids import PartitionKey
from penstock.order.outcome import Standing
from penstock.records.sums import batch_sum, partition_seed
from penstock.replica.dump import canonical_dump
from penstock.replica.replica import Replica
from penstock.replica.snapshot import write_snapshot
from penstock.security.acl import AclBinding
from penstock.state.answers import BatchStatus, RunsCommitted
from penstock.state.apply.machine import EntryOutcome, LogMachine
from penstock.state.leader_epochs import begin_leader_epoch
from penstock.state.orders import restore
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.restored import begin_restored
from penstock.state.rows import (
    AgentStatus,
    CleanRow,
    GroupKind,
    GroupRow,
    Shard,
    ShareRow,
    TableRow,
    Wal,
    WriterRow,
)
from penstock.state.schema import FORMAT_VERSION, OLDEST_VERSION
from penstock.state.transactions import (
    AbortedRange,
    Marker,
    TransactionState,
    is_marker,
    marker_of_run,
)
from support.simulated.randomness import SeededRandom
from support.state_rows import condemned_objects, group_offsets
from unit.state.orders import KEY, TOPIC_ID, batch, commit, open_order

GOLDEN = Path(__file__).parents[2] / "golden" / "metadata"
VERSIONS = range(OLDEST_VERSION, FORMAT_VERSION + 1)


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shutil.copyfile(GOLDEN / f"format-{request.param}.sqlite", tmp_path / "metadata.sqlite")


def dump(path: Path) -> list[bytes]:
    with closing(sqlite3.connect(path)) as connection:
        return list(canonical_dump(connection))


def columns(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as connection:
        tables = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
            )
        ]
        return {
            name: connection.execute(f'PRAGMA table_info("{name}")').fetchall() for name in tables
        }


def opened(path: Path) -> Replica[EntryOutcome]:
    return Replica.open(path, LogMachine(), fsync=False)


def holds_what_it_held(queries: Queries) -> None:
    assert queries.cluster_id() == "AAAAAAAAAAAAAAAAAAAAAg"
    assert [row[2] for row in queries.topic_rows()] == ["flights"]
    (stored, waiting) = queries.runs_from(KEY, 0, limit=10)
    assert (stored.object_key, stored.base_offset, stored.end_offset) == ("golden-object", 0, 10)
    assert (stored.raw, stored.origin) == (0, "")
    assert (waiting.generation, waiting.base_offset, waiting.end_offset) == (1, 10, 13)
    assert group_offsets(queries, "readers")[(TOPIC_ID, 0)].offset in {7, 40}
    assert {row.key for row in queries.objects("", 99)} >= {"golden-object"}
    assert queries.run_with_max_timestamp(KEY) is not None
    assert queries.first_run_at_time(KEY, 0) is not None
    assert queries.integrity_problems() == []


def test_it_is_read_as_it_is(golden: Path) -> None:
    before = golden.read_bytes()
    with closing(Queries(golden)) as queries:
        holds_what_it_held(queries)
        StateView.load(queries)
    assert golden.read_bytes() == before


def test_it_is_brought_to_this_version_and_goes_on(golden: Path) -> None:
    order = open_order(golden.parent)
    with closing(Queries(golden)) as queries:
        holds_what_it_held(queries)
    applied = order.append([commit(batch(3, producer=(5, 0, 10)), position=900)])
    assert applied.outcome.answers == [RunsCommitted([[BatchStatus.DUPLICATE, 10]])]
    order.close()
    (golden.parent / "new").mkdir()
    open_order(golden.parent / "new").close()
    assert columns(golden) == columns(golden.parent / "new" / "metadata.sqlite")


def test_its_journal_replayed_gives_its_rows_and_answers(golden: Path, tmp_path: Path) -> None:
    with closing(Queries(golden)) as queries:
        restores = queries.leader_epoch()
    # They came before there was anything: no entry says so.
    opened(tmp_path / "replay").close()
    with closing(sqlite3.connect(tmp_path / "replay")) as connection, connection:
        for _ in range(restores):
            begin_leader_epoch(connection)
    replica = opened(golden)
    machine = LogMachine()
    with closing(Replica.open(tmp_path / "replay", machine, fsync=False)) as fresh:
        for entry in replica.journal_after(0):
            outcome = fresh.append(entry.body, stamp_ms=entry.time_ms).outcome
            assert outcome.standing is Standing.APPLIED
    replica.close()
    # Every table: answers are rows of agent_entries.
    assert dump(tmp_path / "replay") == dump(golden)


@pytest.fixture
def snapshot(golden: Path, tmp_path: Path) -> Path:
    write_snapshot(golden, tmp_path / "snapshot")
    return tmp_path / "snapshot"


def test_its_snapshot_is_restored(snapshot: Path, golden: Path, tmp_path: Path) -> None:
    restore(snapshot, tmp_path / "restored")
    opened(golden).close()
    opened(tmp_path / "restored").close()
    assert dump(tmp_path / "restored") == dump(golden)


@pytest.mark.parametrize("version", range(1, OLDEST_VERSION))
def test_a_version_that_no_release_wrote_is_refused_by_its_number(
    version: int, tmp_path: Path
) -> None:
    path = shutil.copyfile(GOLDEN / "format-4.sqlite", tmp_path / "metadata.sqlite")
    write_snapshot(path, tmp_path / "snapshot")
    for file in (path, tmp_path / "snapshot"):
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(f"PRAGMA user_version = {version}")
    before = dump(path)
    said = f"format version {version}, this release opens versions 4 to {FORMAT_VERSION}.*consume"
    with pytest.raises(InvalidRequestError, match=said):
        opened(path)
    with pytest.raises(InvalidRequestError, match=said):
        Queries(path)
    assert dump(path) == before
    restore(tmp_path / "snapshot", tmp_path / "restored")
    with pytest.raises(InvalidRequestError, match=said):
        opened(tmp_path / "restored")
    with (
        closing(sqlite3.connect(tmp_path / "restored")) as connection,
        pytest.raises(InvalidRequestError, match=said),
    ):
        begin_restored(connection, now_ms=1, random=SeededRandom(1))


def test_the_cluster(golden: Path) -> None:
    with closing(Queries(golden)) as queries:
        agents = {agent.agent_id: agent for agent in queries.agents()}
        assert {agent: agents[agent].status for agent in agents} == {
            2: AgentStatus.LIVE,
            1001: AgentStatus.LIVE,
            1002: AgentStatus.DRAINING,
            1003: AgentStatus.FENCED,
        }
        draining = agents[1002]
        assert (draining.epoch, draining.labels, draining.software) == (1, {"zone": "z0"}, "golden")
        assert (draining.endpoint, draining.peer) == ("kafka-1002:9092", "peer-1002:9090")
        assert draining.level_max == queries.feature_level()
        assert queries.wals() == [
            Wal(1, b"golden-wal-id-16", 1002, 1, 8),
            Wal(2, b"another-wal-id16", 1003, 1, 0),
        ]
        assert queries.shards() == [Shard(3, 1, 0, 1), Shard(39, 1, 1002, 1)]
        (run,) = queries.wal_runs(1)
        assert (run.wal_key, run.file_generation, run.end_offset) == (1, 8, 5)
        assert queries.wal_generations(1) == {1 << 32 | 8}
        assert queries.wal_generations() == {1}
        assert [queries.last_wal_generation(wal_key) for wal_key in (0, 1, 2, 3)] == [1, 8, 0, 0]
        group = queries.group("readers")
        assert group is not None
        assert (group.generation, group.state) == (3, b"t")
        assert [key for key, _ in condemned_objects(queries)] == ["orphan"]


def test_the_pipeline(golden: Path) -> None:
    with closing(Queries(golden)) as queries:
        assert queries.feature_level() >= 3
        job = queries.pipeline_jobs()[0]
        assert (job.job, job.kind, job.name, job.last_n) == (1, "compaction", "golden", 1)
        assert (job.opened_ms, job.lease_ms, job.age_max_ms) == (6_000, 60_000, 3_600_000)
        assert queries.writer("golden-writer") == WriterRow(
            writer_id="golden-writer", incarnation="first", batch_id=3, time_ms=6_000
        )
        compacted = PartitionKey(KEY + 1)
        runs = queries.runs_from(compacted, 0, limit=9)
        assert [(run.base_offset, run.end_offset, run.raw) for run in runs] == [
            (0, 2, 0),
            (4, 6, 0),
        ]
        assert queries.clean_rows([compacted]) == {compacted: CleanRow(6, 6_000)}
        (written,) = queries.runs_from(PartitionKey(KEY + 3), 0, limit=9)
        assert written.end_offset == 8
        assert queries.table_rows() == [
            TableRow(
                topic_id=TOPIC_ID,
                table="golden.flights",
                offsets={0: 7, 3: 8},
                snapshot_id=77,
                state="{}",
                time_ms=6_000,
            )
        ]


def test_the_leader_epochs_of_version_4(tmp_path: Path) -> None:
    path = shutil.copyfile(GOLDEN / "format-4.sqlite", tmp_path / "metadata.sqlite")
    with closing(Queries(path)) as queries:
        assert queries.leader_epoch() == 1
        assert queries.epoch_starts() == {
            PartitionKey(KEY + number): ((1, 0),) for number in range(4)
        }
        (written,) = queries.runs_from(PartitionKey(KEY + 3), 0, limit=9)
        assert (written.end_offset, written.raw, written.leader_epoch) == (8, 2, 1)
        (run,) = queries.wal_runs(1)
        assert (run.raw, run.leader_epoch) == (0, 1)


def test_the_sums_of_version_5(tmp_path: Path) -> None:
    """Those of commits and writes, in a WAL and in objects, are of the labels' epoch; those of a
    replacement are as its job said."""
    path = shutil.copyfile(GOLDEN / "format-5.sqlite", tmp_path / "metadata.sqlite")
    with closing(Queries(path)) as queries:
        found = {
            (run.partition_key - KEY, run.base_offset): run.sum
            for number in range(4)
            for run in queries.runs_from(PartitionKey(KEY + number), 0, limit=9)
        }
    seeds = [partition_seed(TOPIC_ID, number) for number in range(4)]
    assert found == {
        (0, 0): batch_sum(seeds[0], 0, 1, 0xAAAA, 100),
        (0, 10): batch_sum(seeds[0], 10, 1, 0xBBBB, 100),
        (1, 0): 41,
        (1, 4): None,
        (2, 0): batch_sum(seeds[2], 0, 1, 0xDDDD, 100),
        (3, 0): batch_sum(seeds[3], 0, 1, 0xEEEE, 100),
    }


def test_the_members_of_version_6(tmp_path: Path) -> None:
    path = shutil.copyfile(GOLDEN / "format-6.sqlite", tmp_path / "metadata.sqlite")
    with closing(Queries(path)) as queries:
        assert queries.group("h") == GroupRow("h", 2, "consumer", None, b"s", GroupKind.CONSUMER)
        assert queries.group_members("h") == [("two", b"3")]
        readers = queries.group("readers")
        assert readers is not None
        assert readers.kind is GroupKind.CLASSIC


def test_the_share_groups_of_version_7(tmp_path: Path) -> None:
    """A partition that is not there was left out."""
    path = shutil.copyfile(GOLDEN / "format-7.sqlite", tmp_path / "metadata.sqlite")
    with closing(Queries(path)) as queries:
        group = queries.group("s")
        assert group is not None
        assert group.kind is GroupKind.SHARE
        assert queries.share_partitions("s") == [ShareRow(TOPIC_ID, 2, 8, b"state")]


def test_the_transactions_of_version_7(tmp_path: Path) -> None:
    """The first of three has committed, the second was aborted, the third is open."""
    path = shutil.copyfile(GOLDEN / "format-7.sqlite", tmp_path / "metadata.sqlite")
    key = PartitionKey(KEY + 2)
    with closing(Queries(path)) as queries:
        assert queries.acls() == [AclBinding(2, "flights", 3, "User:alice", "*", 3, 3)]
        first, second, third = queries.transactions_page(-1, limit=9)
        assert [row.state for row in (first, second, third)] == [
            TransactionState.COMMITTED,
            TransactionState.ABORTED,
            TransactionState.ONGOING,
        ]
        assert (first.epoch, first.last_epoch, third.epoch) == (1, 0, 0)
        assert queries.first_open() == {key: 9}
        assert queries.aborted_from(key, 0, limit=9) == [AbortedRange(second.producer_id, 7, 12, 9)]
        markers = [
            (run.base_offset, marker_of_run(run))
            for run in queries.runs_from(key, 0, limit=99)
            if is_marker(run.generation)
        ]
        assert markers == [
            (11, Marker(first.producer_id, 1, True, 6_000)),
            (12, Marker(second.producer_id, 1, False, 6_000)),
        ]
        offsets = group_offsets(queries, "readers")
        assert {place[1]: row.offset for place, row in offsets.items()} == {0: 40}
        assert {
            place[1]: row.offset for place, row in queries.pending_offsets("readers").items()
        } == {2: 42}
