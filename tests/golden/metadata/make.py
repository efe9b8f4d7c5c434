"""Make the golden metadata database of this format version: `python tests/golden/metadata/make.py`.

Once per format version, by the release that introduces it, and never again: every later release
must open exactly that and hold what it holds (tests/unit/state/test_golden.py). It has its
whole journal, so that a replay is compared with it, too.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "tests")]

from penstock.records.sums import pack_crcs  # noqa: E402
from penstock.replica.replica import Replica  # noqa: E402
from penstock.security.acl import AclBinding  # noqa: E402
from penstock.security.api_key import ApiKey  # noqa: E402
from penstock.security.quota import QuotaChange, QuotaEntity  # noqa: E402
from penstock.segment import job_object_key  # noqa: E402
from penstock.state.acl_commands import CreateAcls, DeleteAcls  # noqa: E402
from penstock.state.answers import (  # noqa: E402
    AnyAnswer,
    BatchStatus,
    Done,
    JobOpened,
    OffsetsCommitted,
    Refused,
    RunsReplaced,
    WriteCommitted,
)
from penstock.state.apply.machine import LogMachine, Standing  # noqa: E402
from penstock.state.command import OffsetWrite  # noqa: E402
from penstock.state.commands import (  # noqa: E402
    ADDS_ITSELF,
    TRANSACTIONAL,
    AnyCommand,
    ClaimShard,
    ClaimWal,
    CommitOffsets,
    CommitRuns,
    CondemnObjects,
    DrainAgent,
    Fence,
    Heartbeat,
    RegisterAgent,
    RunCommit,
    SaveGroup,
    SaveMembers,
    SaveShares,
    SetFeatureLevel,
)
from penstock.state.entries import Entry, encode_entry  # noqa: E402
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
from penstock.state.quota_commands import AlterQuotas  # noqa: E402
from penstock.state.read.queries import Queries  # noqa: E402
from penstock.state.rows import GroupKind  # noqa: E402
from penstock.state.schema import FEATURE_LEVEL_MAX, FORMAT_VERSION  # noqa: E402
from penstock.state.security_commands import DeleteApiKey, SaveApiKey  # noqa: E402
from penstock.state.transaction_commands import (  # noqa: E402
    CommitToTransaction,
    EndTransaction,
    InitTransaction,
)
from unit.state.orders import (  # noqa: E402
    KEY,
    TOPIC_ID,
    TestClock,
    batch,
    commit,
    open_order,
    store,
    topic,
)

HERE = Path(__file__).parent
READERS_SHARD = 39
"""Of the group "readers"."""


def restore_nothing(path: Path) -> None:
    """Begin leader epoch 1 before there is anything, so that the journal alone gives the state that
    follows."""
    Replica.open(path, LogMachine(), fsync=False).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        begin_leader_epoch(connection)


def fill_embedded(directory: Path) -> int:
    """Fill what an embedded log has; the agent's id."""
    order = open_order(directory, TestClock(5_000))
    order.append([topic("flights", partitions=4)])
    order.append([commit(batch(10, producer=(5, 0, 0)), crcs=[0xAAAA])])
    with_runs = Queries(directory / "metadata.sqlite")
    order.append([store(with_runs.wal_runs(), object_key="golden-object")])
    with_runs.close()
    order.append([commit(batch(3, producer=(5, 0, 10)), position=900, crcs=[0xBBBB])])
    order.append(
        [
            SaveGroup(
                group_id="readers", generation=2, protocol_type="consumer", empty=True, state=b"s"
            ),
            CommitOffsets(
                group_id="readers",
                offsets=[OffsetWrite(topic_id=TOPIC_ID, partition=0, offset=7, metadata="m")],
            ),
        ]
    )
    agent = order.agent_id
    order.close()
    return agent


def fill_cluster(path: Path, embedded_agent: int) -> None:
    """Three more agents: one live, one draining, one fenced; a WAL, shards and raw objects."""
    replica = Replica.open(path, LogMachine(), fsync=False)
    following: dict[int, int] = {}

    def append(agent: int, *commands: AnyCommand) -> list[AnyAnswer]:
        n = following.get(agent, 0)
        entry = Entry(agent=agent, epoch=1, n=n, stamp_ms=6_000, commands=list(commands))
        outcome = replica.append(encode_entry(entry), stamp_ms=6_000).outcome
        assert outcome.standing is Standing.APPLIED, outcome
        following[agent] = n + 1
        return outcome.answers

    for agent in (1001, 1002, 1003):
        register = RegisterAgent(
            agent=agent,
            labels={"zone": f"z{agent % 2}"},
            software="golden",
            endpoint=f"kafka-{agent}:9092",
            peer=f"peer-{agent}:9090",
            level_max=FEATURE_LEVEL_MAX,
        )
        append(agent, register)
    # The embedded agent knows level 1 alone: its epoch has to be over before the level rises, and
    # fencing is of the level. So it begins one more epoch, as an upgraded one would.
    begun = RegisterAgent(agent=embedded_agent, software="golden", level_max=FEATURE_LEVEL_MAX)
    entry = Entry(agent=embedded_agent, epoch=2, n=0, stamp_ms=6_000, commands=[begun])
    replica.append(encode_entry(entry), stamp_ms=6_000)
    append(1001, SetFeatureLevel(level=2), Heartbeat())
    append(
        1002, ClaimWal(wal_id=b"golden-wal-id-16"), ClaimShard(shard=READERS_SHARD, shard_epoch=0)
    )
    append(1003, ClaimShard(shard=3, shard_epoch=0), ClaimWal(wal_id=b"another-wal-id16"))
    described = batch(6, producer=(9, 1, 4))
    runs = [
        RunCommit(partition_key=KEY + 1, position=16, batches=described, crcs=pack_crcs([0xCCCC]))
    ]
    append(1001, CommitRuns(runs=runs, object_key="raw-object", object_bytes=400, raw=True))
    described = batch(5, newer=70)
    runs = [
        RunCommit(partition_key=KEY + 2, position=32, batches=described, crcs=pack_crcs([0xDDDD]))
    ]
    append(1002, CommitRuns(runs=runs, wal=1 << 32 | 8))
    saved = SaveGroup(
        group_id="readers",
        generation=3,
        protocol_type="consumer",
        empty=False,
        state=b"t",
        shard_epoch=1,
    )
    append(1002, saved)
    append(1002, DrainAgent(agent=1002, draining=True), CondemnObjects(keys=["orphan"]))
    append(1001, Fence(agent=1003, epoch=1, seen_position=replica.position))
    fill_pipeline(append)
    fill_members(append)
    fill_transactions(append)
    fill_shares(append)
    fill_acls(append)
    fill_quotas(append)
    fill_api_keys(append)
    replica.close()


def fill_pipeline(append: Callable[..., list[AnyAnswer]]) -> None:
    """A job that has replaced a run and written, and a table that follows."""
    append(1001, SetFeatureLevel(level=3))
    opened = OpenJob(kind="compaction", name="golden", lease_ms=60_000, age_max_ms=3_600_000)
    (answer,) = append(1001, opened)
    assert answer == JobOpened(1, answer.position, 6_000), answer
    written = job_object_key(job=1, name="0" * 32)
    compacted = job_object_key(job=1, name="1" * 32)
    write = CommitWrite(
        job=1,
        writer_id="golden-writer",
        batch_id=3,
        incarnation="first",
        objects=[OutputObject(key=written, size_bytes=500)],
        runs=[
            WriteRun(
                partition_key=KEY + 3,
                object=0,
                position=16,
                batches=batch(8),
                crcs=pack_crcs([0xEEEE]),
            )
        ],
    )
    (answer,) = append(1001, write)
    assert answer == WriteCommitted([KEY + 3, 0, 8]), answer
    replaced = ReplacedPartition(
        partition_key=KEY + 1,
        inputs=[0, 6, 0, 16, batch(6)[0]],
        outputs=[0, 2, 0, 16, 60, 9, 1, 4, 6, 0, 76, 70, 11, 1],
        clean_end=6,
        sums=[41, -1],
    )
    replace = ReplaceRuns(
        job=1,
        n=1,
        input_keys=["raw-object"],
        objects=[OutputObject(key=compacted, size_bytes=300)],
        partitions=[replaced],
    )
    assert append(1001, replace) == [RunsReplaced([0])]
    saved = SaveTable(
        topic_id=TOPIC_ID, table="golden.flights", offsets=[0, 7, 3, 8], snapshot_id=77, state="{}"
    )
    assert not any(isinstance(answer, Refused) for answer in append(1002, saved))


def fill_members(append: Callable[..., list[AnyAnswer]]) -> None:
    """A group with two members, of which one has left."""
    append(1001, SetFeatureLevel(level=5))

    def save(rows: list[tuple[str, bytes]], removed: list[str]) -> None:
        saved = SaveMembers(
            group_id="h",
            generation=2,
            protocol_type="consumer",
            kind=GroupKind.CONSUMER,
            empty=False,
            state=b"s",
            rows=rows,
            removed=removed,
        )
        assert append(1002, saved) == [Done()]

    save([("one", b"1"), ("two", b"2")], [])
    save([("two", b"3")], ["one"])


def fill_shares(append: Callable[..., list[AnyAnswer]]) -> None:
    """A share group with one partition."""
    group = SaveMembers(
        group_id="s",
        generation=1,
        protocol_type="share",
        kind=GroupKind.SHARE,
        empty=True,
        state=b"s",
        rows=[],
        removed=[],
    )
    assert append(1002, group) == [Done()]
    rows = [(TOPIC_ID, 2, 8, b"state"), (TOPIC_ID, 9_999, 0, b"not there")]
    assert append(1002, SaveShares(group_id="s", rows=rows)) == [Done()]


def fill_transactions(append: Callable[..., list[AnyAnswer]]) -> None:
    """Three producers: one has committed, one was aborted, one is open."""
    append(1001, SetFeatureLevel(level=6))
    key = KEY + 2

    def write(producer_id: int, epoch: int, object_key: str) -> None:
        described = batch(2, producer=(producer_id, epoch | TRANSACTIONAL | ADDS_ITSELF, 0))
        runs = [
            RunCommit(partition_key=key, position=16, batches=described, crcs=pack_crcs([0xFFFF]))
        ]
        written = CommitRuns(runs=runs, object_key=object_key, object_bytes=400, raw=True)
        (answer,) = append(1002, written)
        assert answer.runs[0][0] == BatchStatus.STORED, answer

    producers = []
    for number in range(3):
        name = f"golden-{number}"
        (answer,) = append(1001, InitTransaction(transactional_id=name, timeout_ms=60_000))
        producers.append(answer)
        write(answer.producer_id, answer.epoch, f"of-{name}")
        offset = OffsetWrite(topic_id=TOPIC_ID, partition=number, offset=40 + number)
        (answer,) = append(
            1002,
            CommitToTransaction(
                transactional_id=name,
                producer_id=answer.producer_id,
                epoch=answer.epoch,
                group_id="readers",
                offsets=[offset],
                shard_epoch=1,
                adds_group=True,
            ),
        )
        assert answer == OffsetsCommitted([0]), answer
    for number, commits in ((0, True), (1, False)):
        found = producers[number]
        end = EndTransaction(
            transactional_id=f"golden-{number}",
            producer_id=found.producer_id,
            epoch=found.epoch,
            commits=commits,
            bumps=True,
        )
        (answer,) = append(1001, end)
        assert answer.epoch == 1, answer


def fill_acls(append: Callable[..., list[AnyAnswer]]) -> None:
    """Two access rules, of which one is taken back."""
    kept = AclBinding(2, "flights", 3, "User:alice", "*", 3, 3)
    gone = AclBinding(3, "read", 4, "User:*", "10.0.0.0/8", 3, 2)
    assert append(1001, CreateAcls(bindings=[kept, gone])) == [Done()]
    assert append(1002, DeleteAcls(bindings=[gone])) == [Done()]


def fill_quotas(append: Callable[..., list[AnyAnswer]]) -> None:
    """Quotas of a user, of a default and of an address; one is taken back."""
    changes = [
        QuotaChange(QuotaEntity("alice", "loader"), "producer_byte_rate", 1048576.0),
        QuotaChange(QuotaEntity("", None), "request_percentage", 12.5),
        QuotaChange(QuotaEntity(ip="10.0.0.7"), "connection_creation_rate", 20.0),
    ]
    assert append(1001, AlterQuotas(changes=changes)) == [Done()]
    gone = [QuotaChange(QuotaEntity("", None), "request_percentage", None)]
    assert append(1002, AlterQuotas(changes=gone)) == [Done()]


def fill_api_keys(append: Callable[..., list[AnyAnswer]]) -> None:
    """Two API keys, of which one is revoked, and a job of a principal."""
    kept = ApiKey(
        key_id="00112233aabbccdd", digest=bytes(range(32)), principal="User:alice", note="loader"
    )
    gone = ApiKey(
        key_id="ffeeddcc00112233", digest=bytes(32), principal="User:bob", expires_ms=1 << 41
    )
    assert append(1001, SaveApiKey(key=kept)) == [Done()]
    assert append(1002, SaveApiKey(key=gone)) == [Done()]
    assert append(1002, DeleteApiKey(key_id=gone.key_id)) == [Done()]
    opening = OpenJob(
        kind="write", name="nightly", lease_ms=60_000, age_max_ms=3_600_000, principal="User:alice"
    )
    append(1001, opening)


def main() -> None:
    """Make it; refuses to replace one."""
    target = HERE / f"format-{FORMAT_VERSION}.sqlite"
    if target.exists():
        sys.exit(f"{target.name} is there: a golden file is made once")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        restore_nothing(directory / "metadata.sqlite")
        agent = fill_embedded(directory)
        fill_cluster(directory / "metadata.sqlite", agent)
        connection = sqlite3.connect(directory / "metadata.sqlite")
        connection.execute("VACUUM INTO ?", (str(target),))
        connection.close()


if __name__ == "__main__":
    main()
