"""What clients did and saw, checked as it happens: the anomalies of Jepsen's Kafka workload.

A `violation` is a broken promise of the log; the first one ends the run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sim.commits import Commit, CommittedOffset
from sim.growing import Growing
from sim.identity import is_keyed

if TYPE_CHECKING:
    from sim.oracle import Oracle

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
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Leader epochs, and the offset at which each begins."""

    def epoch_of(self, offset: int) -> int:
        """The leader epoch that an offset was given in."""
        return max(epoch for epoch, start in self.epochs if start <= offset)

    def restore(self, start: int, end: int, epoch: int) -> set[bytes]:
        """Forget what came after a moment at which offsets [start, end) were there.

        Returns:
            The values that had been acknowledged after it.
        """
        lost = {value for offset, value in self.acked.items() if offset >= end}
        self.log = {offset: value for offset, value in self.log.items() if offset < end}
        self.acked = {offset: value for offset, value in self.acked.items() if offset < end}
        self.offsets = {value: offset for offset, value in self.log.items()}
        self.end.lower(end)
        self.start.lower(start)
        self.epochs.append((epoch, end))
        return lost


@dataclass(slots=True)
class Topic:
    """What is known of a topic: times in seconds, None: not yet."""

    partitions_acked: list[tuple[float, int]] = field(default_factory=list)
    delete_began_s: float | None = None
    delete_ended_s: float | None = None

    def restore(self, count: int, now_s: float) -> None:
        """It has so many partitions again; 0: it is not there."""
        self.partitions_acked = [(now_s, count)]
        if not count:
            # Who works with it gives it up.
            self.delete_began_s = now_s


class Partitions(dict[Place, Partition]):
    """What is known of those that anything is known of."""

    def __init__(self) -> None:
        super().__init__()
        self.expiring: set[str] = set()
        """Topics whose records leave by themselves."""
        self.leader_epoch = 0
        """Of new ones."""

    def __missing__(self, place: Place) -> Partition:
        start_wanted = FAR if place[0] in self.expiring else 0
        epochs = [(self.leader_epoch, 0)]
        found = self[place] = Partition(start_wanted=start_wanted, epochs=epochs)
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
        self._generations_of_commits: dict[tuple[str, int, Place], tuple[int, float]] = {}
        """The greatest generation of a commit that was acknowledged, and when it was first."""
        self.group_lives: Counter[str] = Counter()
        """How often each group was deleted."""
        self.generations: dict[tuple[str, int, int], str] = {}
        self.assigned: dict[tuple[str, int, int, int], str] = {}
        self._kept: dict[str, int] = {}
        """Topic -> how many of a partition's newest records retention by count leaves."""
        self._lost: set[bytes] = set()
        """Values that were acknowledged after the moment of a restore."""
        self._producers: dict[int, str] = {}
        """Who was given a producer id."""
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
                    offset > expected
                    and offset <= self._start_max(place, partition)
                    and expected == asked
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

    def shared(self, place: Place, records: list[tuple[int, bytes]], who: str) -> None:
        """Records were given to a member of a share group."""
        for offset, value in records:
            self._place(place, offset, value, f"given to {who}")
        if records:
            self.count("shared")

    def labelled(self, place: Place, offset: int, epoch: int) -> None:
        """A batch that was read carries the leader epoch that it was appended in."""
        expected = self.partitions[place].epoch_of(offset)
        if epoch != expected:
            self.violate("leader-epoch", f"{place} {offset} is of epoch {epoch}, not {expected}")

    def epoch_ended(self, place: Place, asked: int, answer: tuple[int, int]) -> None:
        """OffsetForLeaderEpoch was answered of an epoch before the present one."""
        epochs = self.partitions[place].epochs
        ends = {epoch: end for (epoch, _), (_, end) in pairwise(epochs)}
        # One that began after the restore has nothing of an epoch before it.
        if answer != (asked, ends.get(asked, epochs[0][1])):
            self.violate("leader-epoch", f"{place}: epoch {asked} ended at {ends}, told {answer}")
        self.count("asked where an epoch ended")

    def named(self, producer_id: int, who: str) -> None:
        """A producer was given an id."""
        other = self._producers.setdefault(producer_id, who)
        if other != who:
            self.violate("producer-id-twice", f"{producer_id} of {other}, then of {who}")

    def has_lost(self, values: list[bytes]) -> bool:
        """Whether a restore has lost any of these, which had been acknowledged."""
        return not self._lost.isdisjoint(values)

    def out_of_range(self, place: Place, offset: int, began_s: float, who: str) -> None:
        """A fetch was told that its offset doesn't exist."""
        partition = self.partitions[place]
        if offset < self._start_max(place, partition):
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
        if not latest and offset > (start_max := self._start_max(place, partition)):
            self.violate("log-start", f"{place} starts at {offset}, allowed is {start_max}")
        self.count("listed")

    def trimming(self, place: Place, offset: int) -> None:
        """Someone asks to delete records below an offset."""
        partition = self.partitions[place]
        partition.start_wanted = max(partition.start_wanted, offset)

    def expires(self, topic: str) -> None:
        """Records will leave a topic by themselves."""
        self.partitions.expiring.add(topic)

    def keeps(self, topic: str, messages: int) -> None:
        """Records will leave a topic by themselves, but for the newest so many of a partition."""
        self._kept[topic] = messages

    def _start_max(self, place: Place, partition: Partition) -> int:
        """The greatest log start that a partition may have by now."""
        wanted = partition.start_wanted
        kept = self._kept.get(place[0])
        if kept is None:
            return wanted
        oracle: Oracle = self._world.oracle
        oracle.catch_up()
        bounds = oracle.bounds(place)
        return wanted if bounds is None else max(wanted, bounds[1] - kept)

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

    # -- restores --------------------------------------------------------------------------------

    def restored(self, oracle: Oracle) -> None:
        """The cluster is again what it was at a moment. What came after it is gone, and nothing
        else is.

        Args:
            oracle: of the restored cluster.
        """
        epoch = oracle.leader_epoch
        if epoch <= self.partitions.leader_epoch:
            self.violate("leader-epoch", f"{epoch} after {self.partitions.leader_epoch}")
        now_s = self._world.loop.time()
        # Also partitions of which no client has had an answer: a commit in doubt may have left
        # records of an epoch before there, too.
        for place in dict.fromkeys([*self.partitions, *oracle.places()]):
            partition, bounds = self.partitions[place], oracle.bounds(place)
            if bounds is None:
                self._lost.update(partition.acked.values())
                del self.partitions[place]
            else:
                self._lost |= partition.restore(*bounds, epoch)
        self.partitions.leader_epoch = epoch
        for name, topic in self.topics.items():
            topic.restore(oracle.partition_count(name), now_s)
        for (group, place), committed in self._offsets.items():
            committed.restore(oracle.committed(group, place), now_s)
        # Generations come again, of which others may be the leaders.
        self.group_lives.update({group for group, _, _ in self.generations})

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

    def committed_in_order(self, commit: Commit, life: int) -> None:
        """A member's commit was acknowledged, in a group whose members have a partition one after
        the other: none of an earlier generation is taken that was begun after one of a later.

        Args:
            life: of the group, now.
        """
        key = (commit.group, life, commit.place)
        greatest, ended_s = self._generations_of_commits.get(key, (-1, 0.0))
        if commit.generation < greatest and commit.began_s > ended_s:
            self.violate(
                "two-owners",
                f"{commit.group} {commit.place}: a commit of generation {commit.generation} was"
                f" taken after one of {greatest}",
            )
        if commit.generation > greatest:
            self._generations_of_commits[key] = (commit.generation, self._world.loop.time())

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

    def life_of(self, group: str) -> int:
        """How often a group was deleted by now."""
        self._world.catch_up()
        return self.group_lives[group]

    def assigned_to(
        self,
        group: str,
        generation: int,
        leader: str,
        partitions: list[int],
        member: str,
        *,
        life: int,
    ) -> None:
        """A member was given partitions. (A generation that nobody was given any in may come
        twice, as in Kafka: a coordinator that dies before it is journaled takes it along. A group
        that was deleted, since it was empty and had no offsets, begins with the first again.)

        Args:
            life: of the group, when the member had joined: since then it may have been deleted.
        """
        known = self.generations.setdefault((group, life, generation), leader)
        if known != leader:
            self.violate("two-generations", f"{group} {generation}: led by {known} and {leader}")
        for partition in partitions:
            owner = self.assigned.setdefault((group, life, generation, partition), member)
            if owner != member:
                self.violate(
                    "two-owners", f"{group} {generation} partition {partition}: {owner}, {member}"
                )
        self.count("assigned")
