"""Checks a history for what a log must never do. Pure.

The anomalies and their names are those of Jepsen's Kafka workload (jepsen.tests.kafka), less
those of transactions; `unacked-loss` is allowed, whatever else is found is an error of the log.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from chaos.history import History, Outcome, Send

SHOWN_MAX = 10


@dataclass(slots=True)
class Report:
    """What was found, by kind of anomaly, and what was looked at."""

    anomalies: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.anomalies

    def text(self) -> str:
        """For people: counts, then each anomaly with its first cases."""
        lines = [f"  {name:<24} {count:>9}" for name, count in self.counts.items()]
        for name, cases in sorted(self.anomalies.items()):
            lines.append(f"  ANOMALY {name}: {len(cases)}")
            lines += [f"    {case}" for case in cases[:SHOWN_MAX]]
        lines.append("  no anomaly" if self.ok else f"  {len(self.anomalies)} kinds of anomaly")
        return "\n".join(lines)


def check(history: History) -> Report:
    """Look for every kind of anomaly."""
    report = Report()
    log = _log_of(history, report)
    _check_writes(history, report)
    _check_sends(history, report)
    _check_polls(history, log, report)
    _check_end_offsets(history, report)
    _check_committed(history, report)
    outcomes = defaultdict(int)
    for send in history.sends:
        outcomes[send.outcome] += 1
    acknowledged = [send.library for send in history.sends if send.outcome is Outcome.ACKED]
    report.counts = {
        "client libraries": len(set(acknowledged)),
        "sends acknowledged": outcomes[Outcome.ACKED],
        "sends of unknown end": outcomes[Outcome.UNKNOWN],
        "sends failed": outcomes[Outcome.FAILED],
        "records polled": sum(len(poll.seen) for poll in history.polls),
        "records at the end": len(history.final),
        "end offsets asked": len(history.end_offsets),
        "group offsets": len(history.committed),
    }
    return report


def _log_of(history: History, report: Report) -> dict[tuple[int, int], str]:
    """(partition, offset) -> value, from everything that anybody saw or was acknowledged."""
    log: dict[tuple[int, int], str] = {}
    offsets: dict[str, tuple[int, int]] = {}
    sent = {send.value: send for send in history.sends}
    seen = [record for poll in history.polls for record in poll.seen] + history.final
    acked = [
        (send.partition, send.offset, send.value)
        for send in history.sends
        if send.outcome is Outcome.ACKED and send.offset >= 0
    ]
    for partition, offset, value in [*acked, *seen]:
        place = (partition, offset)
        known = log.setdefault(place, value)
        if known != value:
            report.anomalies["inconsistent-offsets"].append(
                f"partition {partition} offset {offset}: {known} and {value}"
            )
        send = sent.get(value)
        if send is None:
            report.anomalies["phantom"].append(f"{value} at {place} was never sent")
            continue
        if send.outcome is Outcome.FAILED:
            report.anomalies["failed-read"].append(f"{value} at {place} had failed")
        if send.partition != partition:
            report.anomalies["wrong-partition"].append(f"{value} went to {send.partition}: {place}")
        first = offsets.setdefault(value, place)
        if first != place and send.idempotent:
            report.anomalies["duplicate"].append(f"{value} at {first} and {place}")
    return log


def _check_writes(history: History, report: Report) -> None:
    final = {record.value for record in history.final}
    highest: dict[int, int] = defaultdict(lambda: -1)
    for record in [record for poll in history.polls for record in poll.seen] + history.final:
        highest[record.partition] = max(highest[record.partition], record.offset)
    for send in history.sends:
        if send.outcome is Outcome.ACKED and send.value not in final:
            kind = "lost-write" if send.offset <= highest[send.partition] else "unseen"
            report.anomalies[kind].append(
                f"{send.value} of {send.producer} ({send.library}), acknowledged at partition "
                f"{send.partition} offset {send.offset}"
            )
    for poll in history.polls:
        for record in poll.seen:
            if record.value not in final:
                report.anomalies["read-and-lost"].append(f"{record} by {poll.consumer}")
    ends: dict[int, list[int]] = defaultdict(list)
    for record in history.final:
        ends[record.partition].append(record.offset)
    for partition, offsets in ends.items():
        if offsets != sorted(set(offsets)):
            report.anomalies["final-order"].append(f"partition {partition}")


def _check_sends(history: History, report: Report) -> None:
    """A producer's records of one partition lie in the order in which they were sent."""
    by_producer: dict[tuple[str, int], list[Send]] = defaultdict(list)
    for send in history.sends:
        if send.idempotent:
            by_producer[send.producer, send.partition].append(send)
    place = {record.value: record.offset for record in history.final}
    for (producer, partition), sends in by_producer.items():
        before: Send | None = None
        for send in sorted(sends, key=lambda send: send.number):
            if send.value not in place:
                continue
            if before is not None and place[before.value] > place[send.value]:
                report.anomalies["nonmonotonic-send"].append(
                    f"{producer} partition {partition}: {before.value} at {place[before.value]}, "
                    f"then {send.value} at {place[send.value]}"
                )
            before = send


def _check_polls(history: History, log: dict[tuple[int, int], str], report: Report) -> None:
    """Within a session offsets grow, and none that exists is left out."""
    by_partition: dict[int, list[int]] = defaultdict(list)
    for partition, offset in sorted(log):
        by_partition[partition].append(offset)
    following: dict[tuple[int, int], int] = {}
    for partition, offsets in by_partition.items():
        for offset, after in pairwise(offsets):
            following[partition, offset] = after
    last: dict[tuple[str, str, int], int] = {}
    for poll in history.polls:
        for record in poll.seen:
            key = (poll.consumer, poll.session, record.partition)
            before = last.get(key)
            if before is not None:
                if record.offset <= before:
                    report.anomalies["nonmonotonic-poll"].append(
                        f"{poll.consumer} ({poll.library}) partition {record.partition}: "
                        f"{record.offset} after {before}"
                    )
                elif record.offset != following.get((record.partition, before)):
                    report.anomalies["poll-skip"].append(
                        f"{poll.consumer} ({poll.library}) partition {record.partition}: "
                        f"{record.offset} after {before}, "
                        f"{following.get((record.partition, before))} lies between"
                    )
            last[key] = record.offset


def _check_end_offsets(history: History, report: Report) -> None:
    """The end of a partition never goes back, whoever asks, and is past what was acknowledged."""
    events: dict[int, list[tuple[float, float, int, str]]] = defaultdict(list)
    for end in history.end_offsets:
        events[end.partition].append((end.began_s, end.ended_s, end.offset, end.client))
    known: dict[int, list[tuple[float, int, str]]] = defaultdict(list)
    for end in history.end_offsets:
        known[end.partition].append((end.ended_s, end.offset, f"end {end.offset}"))
    for send in history.sends:
        if send.outcome is Outcome.ACKED and send.offset >= 0:
            known[send.partition].append((send.ended_s, send.offset + 1, f"ack of {send.value}"))
    for partition, asked in events.items():
        facts = sorted(known[partition])
        asked.sort()
        at = 0
        greatest, why = -1, ""
        for began_s, ended_s, offset, client in asked:
            while at < len(facts) and facts[at][0] < began_s:
                if facts[at][1] > greatest:
                    _, greatest, why = facts[at]
                at += 1
            if offset < greatest:
                report.anomalies["end-offset-went-back"].append(
                    f"partition {partition}: {client} was told {offset} after {why}, "
                    f"asked at {began_s:.3f} s, answered at {ended_s:.3f} s"
                )


def _check_committed(history: History, report: Report) -> None:
    """A fetched group offset is no older than the newest one committed before it was asked for.

    Holds for groups whose committed offsets only grow, as the load's do.
    """
    commits: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
    for entry in history.committed:
        commits[entry.group, entry.partition].append((entry.ended_s, entry.offset))
    for entry in history.committed:
        if not entry.is_fetch:
            continue
        before = [
            offset
            for ended_s, offset in commits[entry.group, entry.partition]
            if ended_s < entry.began_s
        ]
        if before and entry.offset < max(before):
            report.anomalies["committed-offset-went-back"].append(
                f"group {entry.group} partition {entry.partition}: {entry.offset} after "
                f"{max(before)}"
            )
