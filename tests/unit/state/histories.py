"""Strategies for commands, and what of a state is compared with the dumb twin."""

from operator import itemgetter
from typing import Any

from hypothesis import strategies as st

from penstock.model.ids import PartitionKey
from penstock.records.sums import pack_crcs
from penstock.security.acl import AclBinding
from penstock.security.quota import QuotaChange, QuotaEntity
from penstock.state.acl_commands import CreateAcls, DeleteAcls
from penstock.state.answers import AnyAnswer, Refused, Relayed
from penstock.state.command import OffsetWrite
from penstock.state.commands import (
    AllocateProducerIds,
    AlterClusterConfigs,
    AlterGroupConfigs,
    AlterTopicConfigs,
    CommitOffsets,
    CommitRuns,
    CondemnObjects,
    CreatePartitions,
    CreateTopic,
    DeleteGroups,
    DeleteOffsets,
    DeleteTopic,
    ExpireProducers,
    ForgetObjects,
    MovedRun,
    Noop,
    RunCommit,
    SaveGroup,
    SaveMembers,
    SaveShares,
    SetFeatureLevel,
    SetJournalTime,
    StoreSegment,
    TrimLog,
)
from penstock.state.quota_commands import AlterQuotas
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.rows import GroupKind
from support.state_rows import group_offsets
from unit.state.twin import Batch, Partition, Twin

WRAP = 1 << 31
IDS = [bytes([number]) * 16 for number in range(3)]
OBJECT_KEYS = [f"o{number}" for number in range(12)]
GROUPS = ["g", "h"]

ids = st.sampled_from(IDS)

# Few places, so that commands meet: two partitions that exist from the start, rarely others.
keys = st.sampled_from([1 << 20, 1 << 20, 1 << 20, 1 << 20, 2 << 20, 2 << 20, 1 << 20 | 1, 3 << 20])
rules = st.lists(
    st.builds(
        AclBinding,
        resource_type=st.sampled_from([2, 2, 2, 0]),
        name=st.sampled_from(["t", "*"]),
        pattern_type=st.sampled_from([3, 4]),
        principal=st.sampled_from(["User:a", "User:*"]),
        host=st.just("*"),
        operation=st.just(3),
        permission=st.sampled_from([2, 3]),
    ),
    max_size=3,
)
quota_changes = st.lists(
    st.builds(
        QuotaChange,
        entity=st.sampled_from(
            [QuotaEntity("u"), QuotaEntity("", "c"), QuotaEntity(ip="10.0.0.1"), QuotaEntity()]
        ),
        key=st.sampled_from(["producer_byte_rate"] * 2 + ["connection_creation_rate"]),
        value=st.sampled_from([None, 1.0, 2.0]),
    ),
    max_size=3,
)
configs = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"), max_size=2)


@st.composite
def runs(draw: st.DrawFn, twin: Twin) -> list[RunCommit]:
    """Runs as a frame has them: one behind the other, sometimes with bytes between.

    Sequences are mostly the next one, else one that was before, else anything.
    """
    position = draw(st.integers(0, 50))
    found = []
    planned: dict[tuple[int, int], tuple[int, int]] = {}
    for _ in range(draw(st.integers(1, 3))):
        key = draw(keys)
        batches: list[int] = []
        length = 0
        for _ in range(draw(st.integers(1, 4))):
            size = draw(st.integers(61, 65))
            count = draw(st.integers(1, 2))
            producer = draw(st.sampled_from([-1, 1, 1]))
            epoch = sequence = -1
            if producer >= 0:
                known = twin.partitions.get(key, Partition()).producers.get(producer)
                ranges = known[1] if known else [(0, WRAP - 3, 0)]
                epoch, following = planned.get(
                    (key, producer), (known[0] if known else 0, (ranges[-1][1] + 1) % WRAP)
                )
                match draw(st.integers(0, 9)):
                    case 0:
                        epoch += draw(st.sampled_from([-1, 1]))
                        sequence = draw(st.integers(0, 1))
                    case 1:
                        sequence = (following + draw(st.integers(-9, 2))) % WRAP
                    case 2 | 3:
                        first, last, _ = draw(st.sampled_from(ranges[-7:]))
                        sequence, count = first, min((last - first) % WRAP + 1, 3)
                    case _:
                        sequence = following
                        planned[(key, producer)] = (epoch, (sequence + count) % WRAP)
            batches += [size, count, draw(st.integers(-5, 5)), producer, max(epoch, -1), sequence]
            length += size
        # None of an older release; too few can only come from a bug.
        crcs = [
            draw(st.sampled_from([0, 1, 1 << 31, (1 << 32) - 1])) for _ in range(len(batches) // 6)
        ]
        packed = draw(st.sampled_from([pack_crcs(crcs)] * 8 + [b"", pack_crcs(crcs)[4:], b"123"]))
        found.append(RunCommit(partition_key=key, position=position, batches=batches, crcs=packed))
        position += length + draw(st.sampled_from([0, 0, 13]))
    return found


simple = st.one_of(
    st.builds(Noop),
    st.builds(SetFeatureLevel, level=st.integers(0, 1)),
    st.builds(
        CreateTopic,
        name=st.sampled_from("tuv"),
        topic_id=ids,
        partitions=st.integers(0, 3),
        configs=configs,
        replication_factor=st.sampled_from([0, 0, 3, -1, 1 << 15]),
    ),
    st.builds(DeleteTopic, topic_id=st.sampled_from(IDS)).filter(
        lambda one: one.topic_id != IDS[0]
    ),
    st.builds(CreatePartitions, topic_id=ids, partitions=st.integers(1, 4)),
    st.builds(AlterTopicConfigs, topic_id=ids, set=configs, unset=st.lists(st.sampled_from("abc"))),
    st.builds(AlterClusterConfigs, set=configs, unset=st.lists(st.sampled_from("abc"))),
    st.builds(CreateAcls, bindings=rules),
    st.builds(DeleteAcls, bindings=rules),
    st.builds(AlterQuotas, changes=quota_changes),
    st.builds(
        AlterGroupConfigs,
        group_id=st.sampled_from("gh"),
        set=configs,
        unset=st.lists(st.sampled_from("abc")),
    ),
    st.builds(AllocateProducerIds, count=st.integers(1, 1000)),
    st.builds(
        TrimLog,
        items=st.lists(st.tuples(keys, st.one_of(st.just(-1), st.integers(-2, 9))), max_size=3).map(
            lambda pairs: [value for pair in pairs for value in pair]
        ),
    ),
    st.builds(CondemnObjects, keys=st.lists(st.sampled_from(OBJECT_KEYS), max_size=3)),
    st.builds(ForgetObjects, keys=st.lists(st.sampled_from(OBJECT_KEYS), max_size=3)),
    st.builds(
        SaveGroup,
        group_id=st.sampled_from(GROUPS),
        generation=st.integers(0, 3),
        protocol_type=st.just("consumer"),
        empty=st.booleans(),
        state=st.binary(max_size=3),
    ),
    st.builds(
        SaveMembers,
        group_id=st.sampled_from(GROUPS),
        generation=st.integers(0, 3),
        protocol_type=st.just("consumer"),
        kind=st.sampled_from(GroupKind),
        empty=st.booleans(),
        state=st.binary(max_size=3),
        rows=st.lists(st.tuples(st.sampled_from("mn"), st.binary(max_size=3)), max_size=2),
        removed=st.lists(st.sampled_from("mn"), max_size=2),
    ),
    st.builds(
        SaveShares,
        group_id=st.sampled_from(GROUPS),
        rows=st.lists(
            st.tuples(ids, st.integers(0, 3), st.integers(-1, 9), st.binary(max_size=3)),
            max_size=3,
        ),
        removed=st.lists(st.tuples(ids, st.integers(0, 3)), max_size=2),
    ),
    st.builds(DeleteGroups, group_ids=st.lists(st.sampled_from(GROUPS), max_size=2)),
    st.builds(
        CommitOffsets,
        group_id=st.sampled_from(GROUPS),
        offsets=st.lists(
            st.builds(
                OffsetWrite,
                topic_id=ids,
                partition=st.integers(0, 3),
                offset=st.integers(0, 1 << 62),
                leader_epoch=st.integers(-1, 1),
                metadata=st.sampled_from(["", "m"]),
            ),
            max_size=3,
        ),
    ),
    st.builds(
        DeleteOffsets,
        group_id=st.sampled_from(GROUPS),
        items=st.lists(st.tuples(ids, st.integers(0, 2)), max_size=2),
    ),
)


def time_settings(now_ms: int) -> st.SearchStrategy[SetJournalTime]:
    """To the clock mostly."""
    return st.builds(
        SetJournalTime,
        time_ms=st.sampled_from([now_ms, now_ms, now_ms - 5_000, now_ms + 5_001, 0]),
        rows_max=st.just(1_000),
        begins=st.sampled_from([True, True, False]),
    )


def commits(twin: Twin) -> st.SearchStrategy[CommitRuns]:
    """To the WAL mostly, else to an object."""
    to_wal = st.builds(CommitRuns, runs=runs(twin), wal=st.integers(1, 3))
    to_object = st.builds(
        CommitRuns,
        runs=runs(twin),
        object_key=st.sampled_from(OBJECT_KEYS),
        object_bytes=st.just(500),
    )
    return st.one_of(to_wal, to_wal, to_object)


@st.composite
def segments(draw: st.DrawFn, queries: Queries) -> StoreSegment:
    """Some of what is in the WAL, in offset order, now and then not quite as it is there."""
    by_key: dict[int, list[list[int]]] = {}
    for run in queries.wal_runs():
        if draw(st.integers(0, 3)):
            wrong = draw(st.sampled_from([0, 0, 0, 0, 0, 1]))
            by_key.setdefault(run.partition_key, []).append(
                [run.base_offset, run.generation + wrong, run.position, run.length]
            )
    position = 16
    moved = []
    for key in sorted(by_key):
        sources = [value for run in sorted(by_key[key]) for value in run]
        moved.append(MovedRun(partition_key=key, position=position, runs=sources))
        position += sum(sources[3::4])
    return StoreSegment(
        object_key=draw(st.sampled_from(OBJECT_KEYS)), object_bytes=position, runs=moved
    )


@st.composite
def expiries(draw: st.DrawFn, queries: Queries) -> ExpireProducers:
    """Some producers, some of them seen at another time than they were."""
    items: list[int] = []
    for key, producer, seen in queries.producers_page((-1, -1), limit=100):
        if draw(st.booleans()):
            items += (key, producer, seen + draw(st.integers(0, 1)))
    return ExpireProducers(items=items)


@st.composite
def group_expiries(draw: st.DrawFn, queries: Queries) -> DeleteGroups | DeleteOffsets:
    """Groups, or offsets of one, some of them seen at another time than they were."""
    groups = [row for row in queries.groups_page("", limit=100) if draw(st.booleans())]
    late = st.sampled_from([0, 0, 0, 1])
    if not groups or draw(st.booleans()):
        seen = [
            (-1 if row.empty_since_ms is None else row.empty_since_ms + draw(late), newest)
            for row in groups
            for offsets in [group_offsets(queries, row.group_id).values()]
            for newest in [max((one.commit_ms for one in offsets), default=-1) + draw(late)]
        ]
        return DeleteGroups(group_ids=[row.group_id for row in groups], seen=seen)
    group_id = groups[0].group_id
    offsets = group_offsets(queries, group_id)
    return DeleteOffsets(
        group_id=group_id,
        items=list(offsets),
        seen_ms=[offset.commit_ms + draw(late) for offset in offsets.values()],
    )


def blunt(answer: AnyAnswer) -> AnyAnswer:
    """Without the words: the twin has none."""
    if isinstance(answer, Relayed):
        return Relayed(int(answer.standing), [blunt(inner) for inner in answer.answers])
    return Refused(answer.reason) if isinstance(answer, Refused) else answer


def assert_equal_to_twin(queries: Queries, view: StateView, twin: Twin) -> None:
    assert {
        topic_id: (key, name, partitions, found, factor)
        for key, topic_id, name, partitions, found, factor in queries.topic_rows()
    } == {
        topic_id: (
            topic.key,
            topic.name,
            topic.partitions,
            topic.configs,
            topic.replication_factor,
        )
        for topic_id, topic in twin.topics.items()
    }
    assert {topic.topic_id: topic.replication_factor for topic in view.topics()} == {
        topic_id: topic.replication_factor for topic_id, topic in twin.topics.items()
    }
    assert queries.cluster_configs() == twin.cluster_configs == view.cluster_configs
    assert queries.acls() == sorted(twin.acls)
    assert set(view.acls.bindings()) == twin.acls
    assert {(one.entity, one.key): one.value for one in queries.quotas()} == twin.quotas
    assert {
        (entity, key): value for entity, own in view.quotas.entities() for key, value in own.items()
    } == twin.quotas
    assert queries.group_configs() == twin.group_configs == view.group_configs
    assert queries.last_wal_generation() == twin.last_generation
    assert [key for key, _, _ in queries.heads()] == sorted(twin.partitions)
    sizes = queries.partition_bytes(None)
    producers: list[Any] = []
    for key, partition in sorted(twin.partitions.items()):
        head = view.head(PartitionKey(key))
        assert head is not None
        assert (head.log_start, head.next_offset) == (partition.start, partition.next)
        assert sizes[PartitionKey(key)] == sum(batch.length for batch in partition.batches)
        expected = [
            (
                run[0].base,
                run[-1].end,
                run[0].place if isinstance(run[0].place, int) else 0,
                run[0].place if isinstance(run[0].place, str) else "",
                run[0].position,
                sum(batch.length for batch in run),
                max(batch.newest for batch in run),
                len(run),
                _sum_of(run),
            )
            for run in partition.runs().values()
        ]
        found_runs = [
            (
                run.base_offset,
                run.end_offset,
                run.generation,
                run.object_key,
                run.position,
                run.length,
                run.max_timestamp,
                run.batch_count,
                run.sum,
            )
            for run in queries.runs_from(PartitionKey(key), 0, limit=1000)
        ]
        assert found_runs == sorted(expected, key=itemgetter(0))
        assert_look_ups(queries, PartitionKey(key))
        producers += [
            (key, producer, seen) for producer, (_, _, seen) in sorted(partition.producers.items())
        ]
    assert queries.producers_page((-1, -1), limit=1000) == producers
    live = twin.live_objects()
    assert {row.key: (row.live_runs > 0, row.condemned_ms) for row in queries.objects("", 99)} == {
        key: (key in live, condemned) for key, condemned in twin.objects.items()
    }
    unreferenced = {
        key for key, condemned in twin.objects.items() if condemned is None and key not in live
    }
    assert set(queries.unreferenced_objects(limit=99)) == unreferenced
    assert {
        group.group_id: (group.generation, group.protocol_type, group.empty_since_ms, group.state)
        for group in queries.groups()
    } == twin.groups
    assert {group.group_id: group.kind for group in queries.groups() if group.kind} == twin.kinds
    for group_id in GROUPS:
        assert dict(queries.group_members(group_id)) == twin.members.get(group_id, {})
        assert {
            (row.topic_id, row.partition): (row.start_offset, row.state)
            for row in queries.share_partitions(group_id)
        } == twin.shares.get(group_id, {})
        assert {
            place: (row.offset, row.leader_epoch, row.metadata, row.commit_ms)
            for place, row in group_offsets(queries, group_id).items()
        } == twin.offsets.get(group_id, {})


def _sum_of(run: list[Batch]) -> int | None:
    sums = [batch.sum for batch in run if batch.sum is not None]
    return sum(sums) % (1 << 63) if len(sums) == len(run) else None


def assert_look_ups(queries: Queries, key: PartitionKey) -> None:
    """Look-ups by offset and time equal a scan of all runs."""
    every = queries.runs_from(key, 0, limit=1000)
    for offset in range(0, 12, 3):
        expected = [run for run in every if run.end_offset > offset]
        assert queries.runs_from(key, offset, limit=1000) == expected
        assert queries.runs_from(key, offset, limit=1) == expected[:1]
    for timestamp in (-5, 0, 5):
        newer = [run for run in every if run.max_timestamp >= timestamp]
        assert queries.first_run_at_time(key, timestamp) == (newer[0] if newer else None)
    newest = max(every, key=lambda run: (run.max_timestamp, -run.base_offset), default=None)
    assert queries.run_with_max_timestamp(key) == newest
