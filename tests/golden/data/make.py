"""Make the golden data directory of this format version: `python tests/golden/data/make.py`.

Once per format version, by the release that introduces it; what it made then is never made again,
since every later release must open exactly that. Beside the directory (`version-N.tar.gz`) lies
what must be read from it (`version-N.json`).
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import sqlite3
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "tests")]

from penstock.model.ids import PartitionKey, partition_key, partition_of  # noqa: E402
from penstock.records.batch import stored_header  # noqa: E402
from penstock.records.decode import Record  # noqa: E402
from penstock.records.encode import encode_batch  # noqa: E402
from penstock.records.sums import pack_crcs  # noqa: E402
from penstock.segment import RunDescriber, build_segment, job_object_key  # noqa: E402
from penstock.state.answers import JobOpened, RunsReplaced, WriteCommitted  # noqa: E402
from penstock.state.command import OffsetWrite  # noqa: E402
from penstock.state.commands import (  # noqa: E402
    AlterClusterConfigs,
    CommitOffsets,
    CreateTopic,
    DeleteTopic,
    SaveGroup,
    SaveMembers,
    SaveShares,
)
from penstock.state.leader_epochs import begin_leader_epoch  # noqa: E402
from penstock.state.pipeline_commands import (  # noqa: E402
    CommitWrite,
    OpenJob,
    OutputObject,
    ReplacedPartition,
    ReplaceRuns,
    SaveTable,
    WriteRun,
)
from penstock.state.rows import GroupKind  # noqa: E402
from penstock.state.schema import FORMAT_VERSION  # noqa: E402
from penstock.state.transaction_commands import InitTransaction  # noqa: E402
from support.log_contents import contents  # noqa: E402
from support.log_rig import NOW, Rig, run_rig  # noqa: E402

HERE = Path(__file__).parent
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PRODUCER = (9001, 2)
BEHIND = "behind"
DATABASE_FILES = ("metadata.sqlite", "metadata.sqlite-wal")


async def fill(rig: Rig) -> None:
    """A little of everything that a directory may hold."""
    plain = await rig.topic("plain", partitions=3, retention_ms="-1")
    packed = await rig.topic("packed", partitions=len(CODECS))
    (trimmed,) = await rig.topic("trimmed", cleanup_policy="compact")
    (gone,) = await rig.topic("gone")
    for number in range(12):
        for key in plain:
            await rig.append(key, *(b"plain %d %d" % (number, n) for n in range(4)))
        for key, codec in zip(packed, CODECS, strict=True):
            await rig.append(key, b"packed %d " % number * 20, codec=codec)
        await rig.append(plain[0], b"sequence", producer=(*PRODUCER, number))
        await rig.append(trimmed, b"a", b"b")
        await rig.append(gone, b"gone")
        if number in (3, 7):
            await rig.drain()
            await rig.upkeep.snapshot()
    await rig.log.delete_records([(trimmed, 9)])
    topics = {topic.name: bytes(topic.topic_id) for topic in rig.view.topics()}
    await rig.log.commit(
        [
            DeleteTopic(topic_id=topics["gone"]),
            AlterClusterConfigs(set={"message.max.bytes": "2000000"}),
            SaveGroup(
                group_id="readers", generation=4, protocol_type="consumer", empty=True, state=b""
            ),
            SaveMembers(
                group_id="members",
                generation=3,
                protocol_type="consumer",
                kind=GroupKind.CONSUMER,
                empty=False,
                state=b"state",
                rows=[("one", b"a"), ("two", b"b")],
                removed=[],
            ),
            SaveMembers(
                group_id="sharers",
                generation=1,
                protocol_type="share",
                kind=GroupKind.SHARE,
                empty=True,
                state=b"state",
                rows=[],
                removed=[],
            ),
            SaveShares(group_id="sharers", rows=[(topics["plain"], 1, 17, b"shared")]),
            InitTransaction(transactional_id="golden", timeout_ms=60_000),
            CommitOffsets(
                group_id="readers",
                offsets=[
                    OffsetWrite(topic_id=topics["plain"], partition=1, offset=17, metadata="m"),
                    OffsetWrite(topic_id=topics["packed"], partition=0, offset=12),
                ],
            ),
        ]
    )


def begin_epoch(data: Path) -> None:
    """What a restore does to the state: what comes after is of leader epoch 1. Nothing is left that
    the state before could be made of again."""
    shutil.rmtree(data / "journal")
    shutil.rmtree(data / "objects" / "snapshots")
    with closing(sqlite3.connect(data / "metadata.sqlite")) as connection, connection:
        begin_leader_epoch(connection)


async def fill_pipeline(rig: Rig) -> None:
    """What jobs leave: a batch that was written, runs that were joined, a table that follows."""
    opened = OpenJob(kind="golden", name="make", lease_ms=3_600_000, age_max_ms=86_400_000)
    (answer,) = await rig.log.commit([opened])
    assert isinstance(answer, JobOpened), answer
    await _write(rig, answer.job)
    await _join(rig, answer.job)
    plain = rig.view.topic("plain")
    assert plain is not None
    saved = SaveTable(topic_id=plain.topic_id, table="golden.plain", offsets=[0, 7], snapshot_id=9)
    await rig.log.commit([saved])


async def _write(rig: Rig, job: int) -> None:
    (key,) = await rig.topic("written")
    topic = rig.view.topic("written")
    assert topic is not None
    records = [
        Record(offset_delta=at, timestamp=NOW, key=None, value=b"written %d" % at, headers=())
        for at in range(5)
    ]
    batch = bytearray(encode_batch(records, codec="none"))
    described = RunDescriber(base_offset=0, operation="make", subject="written")
    described.add(memoryview(batch), raw_offset=0)
    segment = build_segment([described.describe(topic.topic_id, 0)], offsets_final=False)
    name = job_object_key(job=job, name="0" * 32)
    await rig.store.put(name, segment.parts)
    run = WriteRun(
        partition_key=key,
        object=0,
        position=segment.positions[0],
        batches=[len(batch), len(records), NOW, -1, -1, -1],
        crcs=pack_crcs([stored_header(batch, 0).crc]),
    )
    write = CommitWrite(
        job=job,
        writer_id="golden-writer",
        batch_id=3,
        incarnation="checkpoint",
        objects=[OutputObject(key=name, size_bytes=segment.size_bytes)],
        runs=[run],
    )
    (answer,) = await rig.log.commit([write])
    assert isinstance(answer, WriteCommitted), answer


async def _join(rig: Rig, job: int) -> None:
    topic = rig.view.topic("plain")
    assert topic is not None
    key = partition_key(topic.topic_key, 2)
    await rig.log.let_queries_find()
    runs = [run for run in rig.queries().runs_from(key, 0, limit=9) if run.object_key]
    assert len(runs) > 1, runs
    described = RunDescriber(base_offset=runs[0].base_offset, operation="make", subject="plain")
    inputs: list[int] = []
    for index, run in enumerate(runs):
        end = run.position + run.length
        described.add(memoryview(await rig.store.get_range(run.object_key, run.position, end)))
        inputs += (run.base_offset, run.end_offset, index, run.position, run.length)
    joined = described.describe(topic.topic_id, partition_of(PartitionKey(key)))
    segment = build_segment([joined])
    name = job_object_key(job=job, name="1" * 32)
    await rig.store.put(name, segment.parts)
    listed = ReplacedPartition(
        partition_key=key,
        inputs=inputs,
        outputs=[
            joined.base_offset,
            joined.end_offset,
            0,
            segment.positions[0],
            joined.length,
            joined.max_timestamp,
            joined.batch_count,
        ],
    )
    replace = ReplaceRuns(
        job=job,
        n=1,
        input_keys=[run.object_key for run in runs],
        objects=[OutputObject(key=name, size_bytes=segment.size_bytes)],
        partitions=[listed],
    )
    assert await rig.log.commit([replace]) == [RunsReplaced([0])]


async def fall_behind(rig: Rig) -> None:
    """Append what the database is then found without, as after a power cut: the WAL has it."""
    topic = rig.view.topic("plain")
    assert topic is not None
    await rig.append(partition_key(topic.topic_key, 1), b"in the WAL")
    await rig.log.let_queries_find()
    rig.journal.checkpoint()
    kept = rig.path / BEHIND
    kept.mkdir()
    for name in DATABASE_FILES:
        if (rig.path / name).exists():
            shutil.copyfile(rig.path / name, kept / name)
    for number in range(3):
        await rig.append(partition_key(topic.topic_key, 1), b"late %d" % number)
    await rig.log.commit([CreateTopic(name="late", topic_id=b"late" * 4, partitions=1)])


def put_behind(data: Path) -> None:
    """Let the database be as `fall_behind` has kept it."""
    for name in DATABASE_FILES:
        (data / name).unlink(missing_ok=True)
    for path in (data / BEHIND).iterdir():
        path.rename(data / path.name)
    (data / BEHIND).rmdir()


async def read(rig: Rig) -> dict[str, Any]:
    """Every record as a client reads it: by topic and partition, (offset, value)."""
    from penstock.log.retention.keeper import partition_keys

    found: dict[str, Any] = {}
    for topic in rig.view.topics():
        for number, key in enumerate(partition_keys(topic)):
            start = rig.log.log_start(key)
            rows = await rig.read_all(key)
            found[f"{topic.name}-{number}"] = {
                "log_start": start,
                "high_watermark": rig.log.high_watermark(key),
                "records": [[offset, value.decode()] for offset, value in rows if offset >= start],
            }
    return found


def as_json(value: Any) -> Any:
    """Bytes as base64, tuples as lists: what JSON gives back."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    return value


def main() -> None:
    """Make both files; refuses to replace them."""
    archive = HERE / f"version-{FORMAT_VERSION}.tar.gz"
    if archive.exists():
        sys.exit(f"{archive.name} is there: a golden directory is made once")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        run_rig(data, fill, drain=True)
        begin_epoch(data)
        run_rig(data, fill_pipeline)
        run_rig(data, fall_behind)
        put_behind(data)
        expected = {"contents": as_json(contents(data))}
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=9) as tar:
            tar.add(data, "data", filter=_anonymous)

        async def note(rig: Rig) -> None:
            expected["records"] = await read(rig)
            expected["cluster_id"] = rig.journal.cluster_id
            expected["agent_id"] = rig.journal.agent_id

        run_rig(data, note)
    archive.write_bytes(buffer.getvalue())
    text = json.dumps(expected, indent=1, sort_keys=True)
    archive.with_name(f"version-{FORMAT_VERSION}.json").write_text(text + "\n")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if "/scratch" in member.name:
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
