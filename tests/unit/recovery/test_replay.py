"""Verify replays what lies between the archive's snapshots, and compares."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.ports.journal import JournalRow
from penstock.recovery.cluster import check_replay, follow_archive
from penstock.recovery.verify import FindingKind, VerifyReport, verify
from penstock.replica.snapshot import write_snapshot
from penstock.state.read.queries import Queries
from support.archives import archive_of, archiver_of, write
from support.cluster_rig import Cluster, passing


@pytest.mark.slow
@pytest.mark.parametrize("snapshots", [1, 3])
async def test_a_replay_gives_the_newest_snapshots_state(
    cluster: Cluster, tmp_path: Path, snapshots: int
) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    for _ in range(snapshots):
        await write(agent)
        await passing(1)
        await archiver.run_once()
        await archiver.snapshot()
    report = VerifyReport()
    await check_replay(archive_of(cluster, "v"), tmp_path / "replayed.sqlite", report)
    assert report.findings == []
    assert report.replayed_entries > 0


@pytest.mark.slow
async def test_a_row_that_is_not_what_was_applied_is_found(
    cluster: Cluster, tmp_path: Path
) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    await write(agent)
    await archiver.run_once()
    await write(agent)
    await archiver.run_once()
    await archiver.snapshot()
    archive = archive_of(cluster, "v")
    last = (await archive.stretches())[-1]
    rows = await archive.read_stretch(last)
    # Sealed instead: as if an agent had archived another journal's rows.
    changed = [JournalRow(row.position, row.stamp_ms, b"") for row in rows]
    await archive.delete([last])
    await archive.put_stretch(changed)
    report = VerifyReport()
    await check_replay(archive, tmp_path / "replayed.sqlite", report)
    assert [finding.kind for finding in report.findings] == [FindingKind.DATABASE]
    assert "another state" in report.findings[0].detail


@pytest.mark.slow
async def test_rows_that_are_missing_are_found(cluster: Cluster, tmp_path: Path) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    for _ in range(3):
        await write(agent)
        await archiver.run_once()
    await archiver.snapshot()
    archive = archive_of(cluster, "v")
    names = await archive.stretches()
    await archive.delete([names[-2]])
    report = VerifyReport()
    await check_replay(archive, tmp_path / "replayed.sqlite", report)
    assert [finding.kind for finding in report.findings] == [FindingKind.DATABASE]


async def test_an_older_releases_snapshot_is_not_taken_for_another_state(
    cluster: Cluster, tmp_path: Path
) -> None:
    """It has not all of the tables, so that its digest is another."""
    agent = await cluster.agent(1)
    await write(agent)
    agent.pause_heartbeats()
    await archiver_of(agent).run_once()
    older = tmp_path / "older.sqlite"
    with closing(sqlite3.connect(agent.queries.path)) as connection:
        connection.execute("VACUUM INTO ?", (str(older),))
    with closing(sqlite3.connect(older)) as connection, connection:
        connection.execute("DROP TABLE leader_epochs")
        connection.execute("PRAGMA user_version = 3")
    archive = archive_of(cluster, "v")
    # Of two at one position the digests would say which is the newest.
    await archive.delete(await archive.snapshots())
    info = write_snapshot(older, tmp_path / "snapshot.sqlite")
    await archive.put_snapshot(tmp_path / "snapshot.sqlite", info)
    report = VerifyReport()
    await check_replay(archive, tmp_path / "replayed.sqlite", report)
    assert report.findings == []
    assert "an older release" in report.not_replayed


async def test_without_a_journal_the_state_is_that_of_the_archives_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    """What was stored since the newest snapshot was taken for orphans, and not read."""
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    await write(agent)
    await archiver.run_once()
    await archiver.snapshot()
    await write(agent)
    await archiver.run_once()
    archive = archive_of(cluster, "v")
    end = (await archive.stretches())[-1].last
    assert (await archive.snapshots())[-1].position < end
    path = tmp_path / "followed.sqlite"
    report = VerifyReport()
    assert await follow_archive(archive, path, report)
    assert report.findings == []
    with closing(Queries(path)) as queries:
        assert queries.position() == end


@pytest.mark.slow
async def test_without_a_journal_rows_that_are_missing_after_the_newest_snapshot_are_damage(
    cluster: Cluster, tmp_path: Path
) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    await write(agent)
    await archiver.run_once()
    await archiver.snapshot()
    for _ in range(3):
        await write(agent)
        await passing(2)
        await archiver.run_once()
    archive = archive_of(cluster, "v")
    gap, last = (await archive.stretches())[-2:]
    assert gap.first > (await archive.snapshots())[-1].position
    await archive.delete([gap])
    report = VerifyReport()
    path = tmp_path / "followed.sqlite"
    assert await follow_archive(archive, path, report)
    with closing(Queries(path)) as queries:
        assert queries.position() == gap.first - 1
    (finding,) = report.findings
    assert finding.is_damage
    assert finding.detail == (
        f"no whole stretch holds the journal's position {gap.first}, and the archive goes on to"
        f" {last.last}: without the journal nothing after position {gap.first - 1} can be"
        " restored. Nothing is lost while the journal still holds those rows: verify with"
        " --journal"
    )


@pytest.mark.slow
@pytest.mark.parametrize("has_journal", [False, True])
async def test_objects_that_were_stored_after_the_archives_end_are_no_orphans(
    cluster: Cluster, tmp_path: Path, *, has_journal: bool
) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    await write(agent)
    await archiver.run_once()
    await archiver.snapshot()
    path = tmp_path / "followed.sqlite"
    assert await follow_archive(archive_of(cluster, "v"), path, VerifyReport())
    with closing(Queries(path)) as queries:
        archived_ms = queries.time_ms()
        data = b"put long ago, and by nothing named"
        cluster.store.objects["segments/00/orphan.seg"] = (data, archived_ms - 600_000)
        cluster.store.objects["segments/00/young.seg"] = (b"put since", archived_ms + 5_000)
        report = await verify(
            queries=queries,
            store=cluster.store,
            wal=None,
            device=None,
            archived_ms=None if has_journal else archived_ms,
        )
    orphans = [one.subject for one in report.findings if one.kind is FindingKind.ORPHAN]
    assert orphans == [
        "segments/00/orphan.seg",
        *(["segments/00/young.seg"] if has_journal else []),
    ]
    assert report.younger_objects == (0 if has_journal else 1)
    assert report.ok
