"""What clients did and saw, checked as it happens: the anomalies of Jepsen's Kafka workload.

A `violation` is a broken promise of the log; the first one ends the run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from sim.commits import Commit, CommittedOffset
from sim.growing import Growing
from sim.identity import is_keyed

FAR = 1 << 62
Place = tuple[str, int]
"""A topic's name, which is never used again, and a partition's number."""


class ViolationError(Exception):
    """A promise was broken. `kind` is one of docs/simulation.md's."""

    def __init__(self, kind: str, detail: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {detail}")


@dataclass(slots=True)
class Partition:
    """What is known of a partition."""

    log: dict[int, bytes] = field(default_factory=dict)
    """Offset -> value, by acknowledgements and reads."""
    offsets: dict[bytes, int] = field(default_factory=dict)
    acked: dict[int, bytes] = field(default_factory=dict)
    end: Growing = field(default_factory=Growing)
    start: Growing = field(default_factory=Growing)
    start_wanted: int = 0
    """The greatest log start that anybody asked for, answered or not."""


@dataclass(slots=True)
class Topic:
    """What is known of a topic: times in seconds, None: not yet."""

    partitions_acked: list[tuple[float, int]] = field(default_factory=list)
    delete_began_s: float | None = None
    delete_ended_s: float | None = None


class Partitions(dict[Place, Partition]):
    """What is known of those that anything is known of."""

    def __init__(self) -> None:
        super().__init__()
        self.expiring: set[str] = set()
        """Topics whose records leave by themselves."""

    def __missing__(self, place: Place) -> Partition:
        start_wanted = FAR if place[0] in self.expiring else 0
        found = self[place] = Partition(start_wanted=start_wanted)
        return found


class History:
    """Facts, each checked against those before."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.partitions = Partitions()
        self.topics: dict[str, Topic] = {}
        self.sent: dict[bytes, Place] = {}
        self._offsets: dict[tuple[str, Place], CommittedOffset] = defaultdict(CommittedOffset)
        self.committed: dict[tuple[str, Place], CommittedOffset] = {}
        """Those of which somebody was told anything."""
        self.group_lives: Counter[str] = Counter()
        """How often each group was deleted."""
        self.generations: dict[tuple[str, int, int], str] = {}
        self.assigned: dict[tuple[str, int, int, int], str] = {}
        self.counts: dict[str, int] = defaultdict(int)
        self.violation: ViolationError | None = None

    def count(self, what: str) -> None:
        """For the trace and for showing that runs do something."""
        self.counts[what] += 1
        self._world.note(what)

    def violate(self, kind: str, detail: str) -> None:
        """A promise is broken."""
        raise self._world.violated(ViolationError(kind, detail))

    # -- records ---------------------------------------------------------------------------------

    def sending(self, place: Place, value: bytes) -> None:
        """A value was given to a producer, once."""
        assert value not in self.sent
        self.sent[value] = place

    def acked(self, place: Place, offset: int, value: bytes) -> None:
        """A producer was told that its value lies at an offset."""
        if offset < 0:
            self.violate("spurious-offset", f"{place} {value[:20]!r} acknowledged at {offset}")
        self._place(place, offset, value, "acknowledged")
        partition = self.partitions[place]
        partition.acked[offset] = value
        partition.end.learn(self._world.loop.time(), offset + 1, f"ack of {value[:20]!r}")
        self.count("acked")

    def read(
        self,
        place: Place,
        asked: int,
        records: list[tuple[int, bytes]],
        who: str,
        *,
        following: int = -1,
    ) -> None:
        """Records came from `asked` on; the reader goes on at `following`."""
        expected = asked
        partition = self.partitions[place]
        compacted = is_keyed(place)
        if compacted:
            self._read_keyed(place, asked, dict(records), following, who)
        for offset, value in records:
            if (
                not compacted
                and offset != expected
                and not (
                    offset > expected and offset <= partition.start_wanted and expected == asked
                )
            ):
                self.violate("poll-skip", f"{who} {place}: {offset} where {expected} was due")
            self._place(place, offset, value, f"read by {who}")
            expected = offset + 1
        if records:
            self.count("read")

    def _read_keyed(
        self, place: Place, asked: int, found: dict[int, bytes], following: int, who: str
    ) -> None:
        """A reader is given all that no cleaning has taken, and that lies above the log's start."""
        oracle = self._world.oracle
        oracle.catch_up()
        start = max(asked, oracle.log_start(place))
        missing = oracle.cleaned.missing(place, start, following, set(found))
        if missing:
            names = [oracle.cleaned.known(place, offset) for offset in missing]
            self.violate("poll-skip", f"{who} {place}: {missing} from {asked} on, {names}")
        for offset, value in found.items():
            known = oracle.cleaned.known(place, offset)
            if value != known:
                self.violate(
                    "inconsistent-offsets",
                    f"{who} {place} offset {offset}: {value!r}, not {known!r}",
                )

    def _place(self, place: Place, offset: int, value: bytes, how: str) -> None:
        partition = self.partitions[place]
        known = partition.log.setdefault(offset, value)
        if known != value:
            self.violate(
                "inconsistent-offsets",
                f"{place} offset {offset}: {known[:20]!r}, then {value[:20]!r} {how}",
            )
        first = partition.offsets.setdefault(value, offset)
        if first != offset:
            self.violate("duplicate", f"{place} {value[:20]!r} at {first}, then at {offset} {how}")
        if self.sent.get(value) != place:
            self.violate("phantom", f"{place} offset {offset}: {value[:20]!r} was not sent there")

    def out_of_range(self, place: Place, offset: int, began_s: float, who: str) -> None:
        """A fetch was told that its offset doesn't exist."""
        partition = self.partitions[place]
        if offset < partition.start_wanted:
            return
        end, why = partition.end.at(began_s)
        if offset <= end:
            self.violate(
                "spurious-out-of-range", f"{who} {place} offset {offset}, though {end}: {why}"
            )

    def listed(self, place: Place, offset: int, began_s: float, *, latest: bool, who: str) -> None:
        """ListOffsets was answered."""
        partition = self.partitions[place]
        numbers = partition.end if latest else partition.start
        least, why = numbers.at(began_s)
        if offset < least:
            self.violate("went-back", f"{who} {place}: told {offset} after {least} ({why})")
        numbers.learn(self._world.loop.time(), offset, f"listed to {who}")
        if not latest and offset > partition.start_wanted:
            self.violate("log-start", f"{place} starts at {offset}, asked {partition.start_wanted}")
        self.count("listed")

    def trimming(self, place: Place, offset: int) -> None:
        """Someone asks to delete records below an offset."""
        partition = self.partitions[place]
        partition.start_wanted = max(partition.start_wanted, offset)

    def expires(self, topic: str) -> None:
        """Records will leave a topic by themselves."""
        self.partitions.expiring.add(topic)

    def trimmed(self, place: Place, start: int) -> None:
        """It was answered."""
        self.partitions[place].start.learn(self._world.loop.time(), start, "DeleteRecords")
        self.count("trimmed")

    # -- topics ----------------------------------------------------------------------------------

    def created(self, name: str, partitions: int) -> None:
        """A topic has (at least) so many partitions."""
        topic = self.topics.setdefault(name, Topic())
        topic.partitions_acked.append((self._world.loop.time(), partitions))
        self.count("created")

    def deleting(self, name: str) -> None:
        """Someone asks to delete it."""
        topic = self.topics[name]
        if topic.delete_began_s is None:
            topic.delete_began_s = self._world.loop.time()

    def unknown(self, place: Place, began_s: float, who: str) -> None:
        """Somebody was told that there is no such topic or partition."""
        topic = self.topics.get(place[0])
        if topic is None or topic.delete_began_s is not None:
            return
        known = [count for ended_s, count in topic.partitions_acked if ended_s < began_s]
        if known and place[1] < max(known):
            self.violate("spurious-unknown", f"{who} {place}: {max(known)} partitions are known")

    def is_deleted(self, name: str) -> bool:
        """Whether anybody asked for it."""
        topic = self.topics.get(name)
        return topic is not None and topic.delete_began_s is not None

    # -- groups ----------------------------------------------------------------------------------

    def committing(self, group: str, place: Place, offset: int, *, generation: int = -1) -> Commit:
        """A group's offset is being committed; one of the next two follows, if it is answered."""
        commit = Commit(group, place, offset, generation, self._world.loop.time())
        self._offsets[group, place].begin(commit)
        return commit

    def committed_offset(self, commit: Commit) -> None:
        """It was acknowledged."""
        self._known(commit.group, commit.place).done(commit, self._world.loop.time())
        self.count("committed")

    def commit_refused(self, commit: Commit) -> None:
        """It was answered with an error."""
        self._offsets[commit.group, commit.place].refused(commit)

    def fetched_offset(
        self, group: str, place: Place, offset: int, began_s: float, who: str
    ) -> None:
        """OffsetFetch was answered."""
        if self.is_deleted(place[0]):
            return
        committed, now_s = self._known(group, place), self._world.loop.time()
        lost = committed.told(offset, began_s, now_s, who)
        if lost is not None:
            self.violate("lost-commit", f"{who} {group} {place}: {lost}")
        if committed.went_back_s == now_s:
            self.count("went back to a late commit")
        if offset > committed.begun_max:
            self.violate("phantom-commit", f"{group} {place}: {offset} was never committed")
        self.count("offset fetched")

    def _known(self, group: str, place: Place) -> CommittedOffset:
        return self.committed.setdefault((group, place), self._offsets[group, place])

    def _leader_of(self, group: str, generation: int, leader: str) -> str:
        return self.generations.setdefault((group, self.group_lives[group], generation), leader)

    def assigned_to(
        self, group: str, generation: int, leader: str, partitions: list[int], member: str
    ) -> None:
        """A member was given partitions. (A generation that nobody was given any in may come
        twice, as in Kafka: a coordinator that dies before it is journaled takes it along. A group
        that was deleted, since it was empty and had no offsets, begins with the first again.)"""
        known = self._leader_of(group, generation, leader)
        if known != leader:
            self._world.catch_up()
            known = self._leader_of(group, generation, leader)
        if known != leader:
            self.violate("two-generations", f"{group} {generation}: led by {known} and {leader}")
        life = self.group_lives[group]
        for partition in partitions:
            owner = self.assigned.setdefault((group, life, generation, partition), member)
            if owner != member:
                self.violate(
                    "two-owners", f"{group} {generation} partition {partition}: {owner}, {member}"
                )
        self.count("assigned")
