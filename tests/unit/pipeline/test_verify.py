"""Verify of a cluster through an agent: it finds each kind of damage, and nothing else."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from crc32c import crc32c

from penstock.cli.main import root
from penstock.pipeline.api_messages import RUN_FIELDS
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.lease import JobLease
from penstock.pipeline.verify import verify_cluster
from penstock.records.batch import stored_header
from penstock.recovery.verify import FindingKind, VerifyReport
from penstock.segment import FOOTER_BYTES, job_object_key
from penstock.system.randomness import SystemRandom
from support.api_server import ApiServer, replacement, serve_in_thread, write_request


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    # What a test leaves in the WAL stays there, however long the test takes.
    with serve_in_thread(tmp_path / "data", segment_age_ms=3_600_000) as found:
        yield found


def fill(api: ApiServer) -> str:
    """A topic with objects, one of them raw, and records in the WAL."""
    topic_id = api.create("flights", 3)
    for partition in range(2):
        for _ in range(20):
            api.produce("flights", partition, count=10, value=b"v" * 100)
    api.drain()
    with JobLease(api.client, kind="write", name="test") as job:
        api.client.write(write_request(api.objects, job, topic_id, {0: 5, 2: 7}))
    api.produce("flights", 1, count=3)
    return topic_id


def verify(api: ApiServer) -> VerifyReport:
    return verify_cluster(api.client, LocalEngine(2))


def kinds(report: VerifyReport) -> list[FindingKind]:
    return [finding.kind for finding in report.findings]


def objects_of(api: ApiServer, topic_id: str) -> dict[str, tuple[int, int]]:
    """Key -> position and length of its first run."""
    found: dict[str, tuple[int, int]] = {}
    for page in api.client.runs():
        for at in range(0, len(page.rows), RUN_FIELDS):
            _, _, _, index, position, length, _, _ = page.rows[at : at + RUN_FIELDS]
            if index >= 0:
                found.setdefault(page.object_keys[index], (position, length))
    return found


def change(tmp_path: Path, key: str, edit: Callable[[bytearray], bytearray]) -> None:
    (path,) = (tmp_path / "data").rglob(Path(key).name)
    path.write_bytes(edit(bytearray(path.read_bytes())))


def test_a_whole_cluster_is_read_and_has_no_findings(api: ApiServer) -> None:
    fill(api)
    report = verify(api)
    assert report.findings == []
    assert (report.topics, report.partitions) == (1, 3)
    assert report.records == 2 * 20 * 10 + 12 + 3
    assert report.objects == 2
    assert report.ok


@pytest.mark.slow
def test_what_was_joined_while_it_is_read_is_no_finding(api: ApiServer) -> None:
    topic_id = fill(api)
    done = False

    def watch(_read: int, _total: int) -> None:
        nonlocal done
        if not done:
            done = True
            with JobLease(api.client, kind="compaction", name="test") as job:
                api.client.replace(replacement(api.client, api.objects, job, topic_id))
            api.produce("flights", 1, count=3)
            api.trim("flights", 1, 100)

    report = verify_cluster(api.client, LocalEngine(1), watch=watch)
    assert report.findings == []
    assert done


@pytest.mark.slow
def test_a_run_in_a_wal_whose_beginning_was_deleted_is_no_finding(api: ApiServer) -> None:
    api.create("flights", 2)
    api.produce("flights", 0, count=10)
    for _ in range(4):
        api.produce("flights", 1, count=10)
    api.trim("flights", 0, 5)
    api.trim("flights", 1, 25)
    report = verify(api)
    assert report.findings == []
    # The log's starts lie within batches, which are read whole; those before are not.
    assert report.records == 10 + 20


@pytest.mark.slow
@pytest.mark.parametrize(("at", "detail"), [(80, "CRC-32C differs"), (15, "leader epoch 1 where")])
def test_a_flipped_bit_in_a_batch_is_damage(
    api: ApiServer, tmp_path: Path, at: int, detail: str
) -> None:
    topic_id = fill(api)
    key, (position, _) = next(iter(objects_of(api, topic_id).items()))

    def flip(body: bytearray) -> bytearray:
        body[position + at] ^= 1
        return body

    change(tmp_path, key, flip)
    report = verify(api)
    assert kinds(report) == [FindingKind.DAMAGED]
    assert detail in report.findings[0].detail
    assert "flights-" in report.findings[0].subject
    assert not report.ok


@pytest.mark.slow
def test_a_flipped_bit_in_an_index_is_damage(api: ApiServer, tmp_path: Path) -> None:
    topic_id = fill(api)
    key = next(iter(objects_of(api, topic_id)))

    def flip(body: bytearray) -> bytearray:
        body[-FOOTER_BYTES - 8] ^= 1
        return body

    change(tmp_path, key, flip)
    assert kinds(verify(api)) == [FindingKind.DAMAGED]


@pytest.mark.slow
def test_batches_that_are_not_the_journals_are_damage(api: ApiServer, tmp_path: Path) -> None:
    """A batch whose CRC is right, with other offsets than are due."""
    topic_id = fill(api)
    found = objects_of(api, topic_id)
    key, (position, _) = next((key, place) for key, place in found.items() if "job" not in key)

    def renumber(body: bytearray) -> bytearray:
        struct.pack_into(">q", body, position, 1)
        return body

    change(tmp_path, key, renumber)
    report = verify(api)
    assert kinds(report) == [FindingKind.DAMAGED]
    assert "is due" in report.findings[0].detail


@pytest.mark.slow
def test_batches_of_a_raw_object_in_another_order_are_damage(
    api: ApiServer, tmp_path: Path
) -> None:
    """Their headers say no offsets yet, lengths are the same and CRCs are right."""
    topic_id = fill(api)
    found = objects_of(api, topic_id)
    key, (position, _) = next((key, place) for key, place in found.items() if "job" in key)

    def swap(body: bytearray) -> bytearray:
        first = stored_header(body, position)
        second = stored_header(body, position + first.length)
        assert (first.length, first.crc) != (second.length, second.crc)
        end = position + first.length + second.length
        middle = position + first.length
        body[position:end] = body[middle:end] + body[position:middle]
        return body

    change(tmp_path, key, swap)
    report = verify(api)
    assert kinds(report) == [FindingKind.DAMAGED]
    assert "flights-0 offsets 200 to 204" in report.findings[0].subject
    assert "sum differs" in report.findings[0].detail


@pytest.mark.slow
def test_every_run_has_its_sum_however_it_came(api: ApiServer) -> None:
    """Produced, uploaded, written by a job, joined."""
    topic_id = fill(api)
    with JobLease(api.client, kind="compaction", name="test") as job:
        answer = api.client.replace(replacement(api.client, api.objects, job, topic_id))
    assert answer.codes == [""]
    sums = [number for page in api.client.runs() for number in page.sums]
    assert len(sums) == len(set(sums)) == 4
    assert min(sums) > 0
    assert verify(api).findings == []


@pytest.mark.slow
def test_a_join_of_other_batches_is_refused(api: ApiServer) -> None:
    """The agent's index check finds nothing wrong with it."""
    topic_id = fill(api)
    with JobLease(api.client, kind="compaction", name="test") as job:
        request = replacement(api.client, api.objects, job, topic_id)
        request.partitions[0].sums[0] ^= 1
        assert api.client.replace(request).codes == ["invalid_replacement"]
    assert verify(api).ok


@pytest.mark.slow
def test_records_that_a_batch_lacks_are_damage(api: ApiServer, tmp_path: Path) -> None:
    """An idempotent producer's batch with fewer records than offsets, its CRC made right."""
    topic_id = api.create("orders")
    api.produce("orders", 0, count=10, producer_id=7)
    api.drain()
    key, (position, length) = next(iter(objects_of(api, topic_id).items()))

    def drop(body: bytearray) -> bytearray:
        struct.pack_into(">i", body, position + 57, 9)
        crc = crc32c(bytes(body[position + 21 : position + length]))
        struct.pack_into(">I", body, position + 17, crc)
        return body

    change(tmp_path, key, drop)
    report = verify(api)
    assert kinds(report) == [FindingKind.DAMAGED]
    assert "9 of 10 records" in report.findings[0].detail


@pytest.mark.slow
def test_a_missing_object_is_found_once(api: ApiServer, tmp_path: Path) -> None:
    topic_id = fill(api)
    key = next(iter(objects_of(api, topic_id)))
    (path,) = (tmp_path / "data").rglob(Path(key).name)
    path.unlink()
    report = verify(api)
    assert kinds(report) == [FindingKind.MISSING]
    assert report.findings[0].subject == key


@pytest.mark.slow
def test_a_cut_object_is_damage(api: ApiServer, tmp_path: Path) -> None:
    topic_id = fill(api)
    change(tmp_path, next(iter(objects_of(api, topic_id))), lambda body: body[:-1])
    report = verify(api)
    assert set(kinds(report)) == {FindingKind.DAMAGED}


@pytest.mark.slow
def test_an_orphan_is_told_and_is_no_damage(api: ApiServer, tmp_path: Path) -> None:
    fill(api)
    with JobLease(api.client, kind="compaction", name="test") as job:
        key = job_object_key(job=job.job, name=SystemRandom().token_bytes(16).hex())
        api.objects.put(key, [b"nobody's"])
        # An open job may still commit it.
        assert verify(api).findings == []
    report = verify(api)
    assert kinds(report) == [FindingKind.ORPHAN]
    assert report.findings[0].subject == key
    assert report.ok


@pytest.mark.slow
def test_the_command_prints_findings_and_tells_damage_by_its_status(
    api: ApiServer, tmp_path: Path
) -> None:
    topic_id = fill(api)
    arguments = ["verify", "--url", str(api.server.http_address), "--engine", "local", "--json"]
    done = CliRunner().invoke(root, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["ok"] is True
    assert "--access ambient" in json.loads(done.stdout)["not_replayed"]
    shown = CliRunner().invoke(root, [*arguments[:-1], "--access", "ambient"])
    assert shown.exit_code == 0, shown.output
    assert "journal was not replayed: the archive has no snapshot" in shown.output
    key = next(iter(objects_of(api, topic_id)))
    change(tmp_path, key, lambda body: body[:-1])
    done = CliRunner().invoke(root, arguments)
    assert done.exit_code == 1
    shown = CliRunner().invoke(root, arguments[:-1]).output
    assert "DAMAGED" in shown
    assert key in shown


def test_a_server_and_a_directory_are_not_verified_together(tmp_path: Path) -> None:
    done = CliRunner().invoke(root, ["verify", "--url", "127.0.0.1:1", "--data", str(tmp_path)])
    assert done.exit_code == 2
    done = CliRunner().invoke(root, ["verify", "--data", str(tmp_path), "--engine", "spark"])
    assert "go with --url" in done.output


def test_an_engine_in_the_environment_is_for_what_takes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_in_thread(tmp_path / "data"):
        pass
    monkeypatch.setenv("PENSTOCK_PIPELINE_ENGINE", "spark")
    done = CliRunner().invoke(root, ["verify", "--data", str(tmp_path / "data")])
    assert done.exit_code == 0, done.output
