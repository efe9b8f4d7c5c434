"""The dumb twin: what the commands mean, in plain dicts and lists, without joins or caches.

It keeps every batch by itself and every sequence range for ever, so that nothing of the real
one's cleverness is in it. It decides; the test compares answers and what queries show.
"""

from dataclasses import dataclass, field

from penstock.records.sums import batch_sum, partition_seed
from penstock.security.acl import AclBinding
from penstock.security.quota import QuotaEntity
from penstock.state.acl_commands import CreateAcls, DeleteAcls
from penstock.state.answers import (
    AnyAnswer,
    BatchStatus,
    Condemned,
    Done,
    JournalTimeSet,
    LogTrimmed,
    OffsetsCommitted,
    ProducerIds,
    Refusal,
    Refused,
    RunsCommitted,
    SegmentStored,
    TopicCreated,
)
from penstock.state.commands import (
    AllocateProducerIds,
    AlterClusterConfigs,
    AlterGroupConfigs,
    AlterTopicConfigs,
    AnyCommand,
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
    Noop,
    SaveGroup,
    SaveMembers,
    SaveShares,
    SetFeatureLevel,
    SetJournalTime,
    StoreSegment,
    TrimLog,
)
from penstock.state.quota_commands import AlterQuotas
from penstock.state.schema import FEATURE_LEVEL_MAX

WRAP = 1 << 31


@dataclass
class Batch:
    """One stored batch. `run`: which run's row it is in; runs live and die whole."""

    base: int
    end: int
    place: int | str
    position: int
    length: int
    newest: int
    run: int
    sum: int | None


@dataclass
class Partition:
    start: int = 0
    next: int = 0
    batches: list[Batch] = field(default_factory=list)
    # producer id -> (epoch, [(first, last, base)], time)
    producers: dict[int, tuple[int, list[tuple[int, int, int]], int]] = field(default_factory=dict)

    def runs(self) -> dict[int, list[Batch]]:
        grouped: dict[int, list[Batch]] = {}
        for batch in self.batches:
            grouped.setdefault(batch.run, []).append(batch)
        return grouped


@dataclass
class Topic:
    key: int
    name: str
    partitions: int
    configs: dict[str, str]
    replication_factor: int


class Twin:
    def __init__(self) -> None:
        self.level = 0
        """The feature level that is on."""
        self.topics: dict[bytes, Topic] = {}
        self.partitions: dict[int, Partition] = {}
        self.objects: dict[str, int | None] = {}  # key -> condemned time
        self.groups: dict[str, tuple[int, str, int | None, bytes]] = {}
        self.kinds: dict[str, int] = {}  # of groups whose kind is not 0
        self.members: dict[str, dict[str, bytes]] = {}
        self.shares: dict[str, dict[tuple[bytes, int], tuple[int, bytes]]] = {}
        self.offsets: dict[str, dict[tuple[bytes, int], tuple[int, int, str, int]]] = {}
        self.cluster_configs: dict[str, str] = {}
        self.acls: set[AclBinding] = set()
        self.quotas: dict[tuple[QuotaEntity, str], float] = {}
        self.group_configs: dict[str, dict[str, str]] = {}
        self.next_topic_key = 1
        self.next_producer_id = 0
        self.last_generation = 0
        self.run_count = 0
        self.level = FEATURE_LEVEL_MAX

    def apply(self, command: AnyCommand, time_ms: int) -> AnyAnswer:
        match command:
            case Noop() | SetFeatureLevel():
                return Done()
            case CreateTopic():
                if command.topic_id in self.topics or command.name in (
                    topic.name for topic in self.topics.values()
                ):
                    return Refused(Refusal.TOPIC_EXISTS)
                if command.partitions < 1:
                    return Refused(Refusal.INVALID_PARTITIONS)
                factor = command.replication_factor if self.level >= 6 else 0
                if not 0 <= factor < 1 << 15:
                    return Refused(Refusal.MALFORMED)
                key = self.next_topic_key
                self.next_topic_key += 1
                self.topics[command.topic_id] = Topic(
                    key,
                    command.name,
                    command.partitions,
                    command.configs,
                    factor,
                )
                for number in range(command.partitions):
                    self.partitions[key << 20 | number] = Partition()
                return TopicCreated(key)
            case DeleteTopic():
                topic = self.topics.pop(command.topic_id, None)
                if topic is None:
                    return Refused(Refusal.UNKNOWN_TOPIC)
                for number in range(topic.partitions):
                    del self.partitions[topic.key << 20 | number]
                for rows in (*self.offsets.values(), *self.shares.values()):
                    for place in [place for place in rows if place[0] == command.topic_id]:
                        del rows[place]
                return Done()
            case CreatePartitions():
                topic = self.topics.get(command.topic_id)
                if topic is None:
                    return Refused(Refusal.UNKNOWN_TOPIC)
                if command.partitions <= topic.partitions:
                    return Refused(Refusal.INVALID_PARTITIONS)
                for number in range(topic.partitions, command.partitions):
                    self.partitions[topic.key << 20 | number] = Partition()
                topic.partitions = command.partitions
                return Done()
            case AlterTopicConfigs():
                topic = self.topics.get(command.topic_id)
                if topic is None:
                    return Refused(Refusal.UNKNOWN_TOPIC)
                topic.configs = {**topic.configs, **command.set}
                for name in command.unset:
                    topic.configs.pop(name, None)
                return Done()
            case AlterClusterConfigs():
                self.cluster_configs = {**self.cluster_configs, **command.set}
                for name in command.unset:
                    self.cluster_configs.pop(name, None)
                return Done()
            case CreateAcls() | DeleteAcls() if self.level < 6:
                return Refused(Refusal.LEVEL_NOT_ON)
            case CreateAcls():
                if any(binding.resource_type == 0 for binding in command.bindings):
                    return Refused(Refusal.MALFORMED)
                self.acls.update(command.bindings)
                return Done()
            case DeleteAcls():
                self.acls.difference_update(command.bindings)
                return Done()
            case AlterQuotas() if self.level < 6:
                return Refused(Refusal.LEVEL_NOT_ON)
            case AlterQuotas():
                for change in command.changes:
                    fits = (change.key == "connection_creation_rate") == bool(change.entity.ip)
                    if not change.entity.parts() or (change.value is not None and not fits):
                        return Refused(Refusal.MALFORMED)
                for change in command.changes:
                    self.quotas.pop((change.entity, change.key), None)
                    if change.value is not None:
                        self.quotas[change.entity, change.key] = change.value
                return Done()
            case AlterGroupConfigs() if self.level < 6:
                return Refused(Refusal.LEVEL_NOT_ON)
            case AlterGroupConfigs():
                after = {**self.group_configs.get(command.group_id, {}), **command.set}
                for name in command.unset:
                    after.pop(name, None)
                self.group_configs.pop(command.group_id, None)
                if after:
                    self.group_configs[command.group_id] = after
                return Done()
            case AllocateProducerIds():
                first = self.next_producer_id
                self.next_producer_id += command.count
                return ProducerIds(first, command.count)
            case CommitRuns():
                return self._commit(command, time_ms)
            case StoreSegment():
                return self._store(command)
            case TrimLog():
                return self._trim(command)
            case ExpireProducers():
                for at in range(0, len(command.items), 3):
                    key, producer, seen = command.items[at : at + 3]
                    found = self.partitions.get(key, Partition()).producers
                    if producer in found and found[producer][2] == seen:
                        del found[producer]
                return Done()
            case CondemnObjects():
                keys = []
                for key in command.keys:
                    if key in self.live_objects():
                        continue
                    if self.objects.get(key) is None:
                        self.objects[key] = time_ms
                    keys.append(key)
                return Condemned(keys)
            case ForgetObjects():
                for key in command.keys:
                    if self.objects.get(key) is not None:
                        del self.objects[key]
                return Done()
            case SetJournalTime():
                return self._set_time(command, time_ms)
            case SaveMembers() if self.level < 5:
                return Refused(Refusal.LEVEL_NOT_ON)
            case SaveGroup() | SaveMembers():
                before = self.groups.get(command.group_id)
                since = None
                if command.empty:
                    since = before[2] if before and before[2] is not None else time_ms
                self.groups[command.group_id] = (
                    command.generation,
                    command.protocol_type,
                    since,
                    command.state,
                )
                self.kinds.pop(command.group_id, None)
                if isinstance(command, SaveMembers):
                    if command.kind:
                        self.kinds[command.group_id] = command.kind
                    members = self.members.setdefault(command.group_id, {})
                    for member_id in command.removed:
                        members.pop(member_id, None)
                    members.update(command.rows)
                return Done()
            case SaveShares() if self.level < 6:
                return Refused(Refusal.LEVEL_NOT_ON)
            case SaveShares():
                return self._save_shares(command)
            case DeleteGroups():
                for at, group in enumerate(command.group_ids):
                    seen = command.seen if self.level >= 4 else []
                    if seen and [self._times_of(group)] != seen[at : at + 1]:
                        continue
                    self.groups.pop(group, None)
                    self.kinds.pop(group, None)
                    self.members.pop(group, None)
                    self.shares.pop(group, None)
                    self.offsets.pop(group, None)
                return Done()
            case CommitOffsets():
                return self._commit_offsets(command, time_ms)
            case DeleteOffsets():
                offsets = self.offsets.get(command.group_id, {})
                for at, place in enumerate(command.items):
                    seen_ms = command.seen_ms if self.level >= 4 else []
                    found = offsets.get(place)
                    if found and seen_ms and [found[3]] != seen_ms[at : at + 1]:
                        continue
                    offsets.pop(place, None)
                return Done()
        raise AssertionError(command)

    def _times_of(self, group: str) -> tuple[int, int] | None:
        """Since when it is empty, and its newest commit; -1 for neither."""
        if group not in self.groups:
            return None
        since = self.groups[group][2]
        times = [offset[3] for offset in self.offsets.get(group, {}).values()]
        return -1 if since is None else since, max(times, default=-1)

    def live_objects(self) -> set[int | str]:
        """Keys that some batch lies in."""
        return {
            batch.place
            for partition in self.partitions.values()
            for batch in partition.batches
            if isinstance(batch.place, str)
        }

    def _object_refusal(self, key: str) -> Refused | None:
        if key not in self.objects:
            return None
        condemned = self.objects[key] is not None
        return Refused(Refusal.OBJECT_CONDEMNED if condemned else Refusal.OBJECT_EXISTS)

    def _commit(self, command: CommitRuns, time_ms: int) -> AnyAnswer:
        place: int | str = command.wal
        if command.object_key:
            place = command.object_key
            if refusal := self._object_refusal(place):
                return refusal
            self.objects[place] = None
        if command.wal < 1 << 32:
            self.last_generation = max(self.last_generation, command.wal)
        answers = []
        last: tuple[int, Batch] | None = None
        for run in command.runs:
            answer: list[int] = []
            position, newest = run.position, 0
            partition = self.partitions.get(run.partition_key)
            knows_crcs = self.level >= 4 and 6 * len(run.crcs) == 4 * len(run.batches)
            for at in range(0, len(run.batches), 6):
                length, count, newer, producer, epoch, sequence = run.batches[at : at + 6]
                newest += newer
                if partition is None:
                    answer += [BatchStatus.REFUSED, Refusal.UNKNOWN_PARTITION]
                    continue
                verdict = _judge(partition, producer, epoch, sequence, count)
                if verdict is None:
                    base = partition.next
                    answer += [BatchStatus.STORED, base]
                    partition.next += count
                    if producer >= 0:
                        known = partition.producers.get(producer)
                        ranges = known[1] if known and known[0] == epoch else []
                        end = (sequence + count - 1) % WRAP
                        partition.producers[producer] = (
                            epoch,
                            [*ranges, (sequence, end, base)],
                            time_ms,
                        )
                    joins = (
                        last is not None
                        and last[0] == run.partition_key
                        and last[1].position + last[1].length == position
                    )
                    if not joins:
                        self.run_count += 1
                    number = None
                    if knows_crcs:
                        crc = int.from_bytes(run.crcs[at // 6 * 4 :][:4], "big")
                        number = batch_sum(self._seed(run.partition_key), base, 0, crc, length)
                    batch = Batch(
                        base, base + count, place, position, length, newest, self.run_count, number
                    )
                    partition.batches.append(batch)
                    last = (run.partition_key, batch)
                else:
                    answer += verdict
                position += length
            answers.append(answer)
        return RunsCommitted(answers)

    def _seed(self, key: int) -> int:
        (topic_id,) = (one for one, topic in self.topics.items() if topic.key == key >> 20)
        return partition_seed(topic_id, key % (1 << 20))

    def _store(self, command: StoreSegment) -> AnyAnswer:
        if refusal := self._object_refusal(command.object_key):
            return refusal
        self.objects[command.object_key] = None
        moved = 0
        for run in command.runs:
            position = run.position
            partition = self.partitions.get(run.partition_key, Partition())
            last: Batch | None = None
            for at in range(0, len(run.runs), 4):
                base, generation, wal_position, length = run.runs[at : at + 4]
                for batches in partition.runs().values():
                    listed = (base, generation, wal_position, length)
                    if listed != (
                        batches[0].base,
                        batches[0].place,
                        batches[0].position,
                        sum(batch.length for batch in batches),
                    ):
                        continue
                    moved += 1
                    joins = (
                        last is not None
                        and last.position + last.length == position
                        and last.end == base
                    )
                    if not joins:
                        self.run_count += 1
                    for batch in batches:
                        batch.position += position - wal_position
                        batch.place = command.object_key
                        batch.run = self.run_count
                    last = batches[-1]
                position += length
        return SegmentStored(moved)

    def _set_time(self, command: SetJournalTime, time_ms: int) -> AnyAnswer:
        """All at once, so that an example walks less than one command may."""
        if self.level < 4:
            return Refused(Refusal.LEVEL_NOT_ON)
        if time_ms > command.time_ms + 5_000:
            return Refused(Refusal.CLOCKS_DISAGREE)
        if not command.begins:
            return JournalTimeSet(0, True)
        lowered = 0
        for key, since in self.objects.items():
            if since is not None and since > time_ms:
                self.objects[key] = time_ms
                lowered += 1
        for partition in self.partitions.values():
            for producer, (epoch, ranges, seen) in partition.producers.items():
                if seen > time_ms:
                    partition.producers[producer] = (epoch, ranges, time_ms)
                    lowered += 1
        for group, (generation, protocol, since, state) in self.groups.items():
            if since is not None and since > time_ms:
                self.groups[group] = (generation, protocol, time_ms, state)
                lowered += 1
        for offsets in self.offsets.values():
            for place, (offset, epoch, metadata, since) in offsets.items():
                if since > time_ms:
                    offsets[place] = (offset, epoch, metadata, time_ms)
                    lowered += 1
        return JournalTimeSet(lowered, True)

    def _trim(self, command: TrimLog) -> AnyAnswer:
        starts = []
        for at in range(0, len(command.items), 2):
            key, wanted = command.items[at : at + 2]
            partition = self.partitions.get(key)
            if partition is None:
                starts.append(-Refusal.UNKNOWN_PARTITION)
                continue
            start = partition.next if wanted == -1 else wanted
            if not 0 <= start <= partition.next:
                starts.append(-Refusal.OFFSET_OUT_OF_RANGE)
                continue
            partition.start = max(partition.start, start)
            partition.batches = [
                batch
                for run in partition.runs().values()
                for batch in run
                if run[-1].end > partition.start
            ]
            starts.append(partition.start)
        return LogTrimmed(starts)

    def _save_shares(self, command: SaveShares) -> AnyAnswer:
        if command.group_id not in self.groups:
            return Refused(Refusal.UNKNOWN_GROUP)
        shares = self.shares.setdefault(command.group_id, {})
        for place in command.removed:
            shares.pop(place, None)
        for topic_id, partition, start_offset, state in command.rows:
            topic = self.topics.get(topic_id)
            if topic is not None and partition < topic.partitions:
                shares[topic_id, partition] = (start_offset, state)
        return Done()

    def _commit_offsets(self, command: CommitOffsets, time_ms: int) -> AnyAnswer:
        codes = []
        for write in command.offsets:
            topic = self.topics.get(write.topic_id)
            if topic is None:
                codes.append(Refusal.UNKNOWN_TOPIC)
            elif not 0 <= write.partition < topic.partitions:
                codes.append(Refusal.UNKNOWN_PARTITION)
            else:
                codes.append(0)
                self.groups.setdefault(command.group_id, (0, "", time_ms, b""))
                self.offsets.setdefault(command.group_id, {})[(write.topic_id, write.partition)] = (
                    write.offset,
                    write.leader_epoch,
                    write.metadata,
                    time_ms,
                )
        return OffsetsCommitted([int(code) for code in codes])


def _judge(
    partition: Partition, producer: int, epoch: int, sequence: int, count: int
) -> list[int] | None:
    """None: it is stored; else what the batch is answered."""
    known = partition.producers.get(producer)
    if producer < 0 or known is None:
        return None
    known_epoch, ranges, _ = known
    if epoch < known_epoch:
        return [BatchStatus.REFUSED, Refusal.FENCED_PRODUCER]
    if epoch > known_epoch:
        return None if sequence == 0 else [BatchStatus.REFUSED, Refusal.OUT_OF_ORDER_SEQUENCE]
    last = (sequence + count - 1) % WRAP
    for first, end, base in ranges[-5:]:
        if (first, end) == (sequence, last):
            return [BatchStatus.DUPLICATE, base]
    if sequence == (ranges[-1][1] + 1) % WRAP:
        return None
    if (ranges[-1][1] - last) % WRAP < WRAP // 2:
        return [BatchStatus.REFUSED, Refusal.OUT_OF_ORDER_SEQUENCE]
    return [BatchStatus.REFUSED, Refusal.OUT_OF_ORDER_SEQUENCE]
