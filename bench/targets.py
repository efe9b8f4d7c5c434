"""What the measured figures are held against. Pure.

A target compares the medians of two figures of one run, or a median with a number. The figures are
named "<server>.<case>.<key>"; `floor.fsync.p50_ms` is the disk's own (fsync_floor.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Target:
    """`figure` must be at least, or at most, `factor` times `against` (a figure, or 1)."""

    title: str
    figure: str
    against: str | None
    factor: float
    at_least: bool


def _at_least(title: str, figure: str, against: str, factor: float = 1.0) -> Target:
    return Target(title, figure, against, factor, at_least=True)


def _at_most(title: str, figure: str, against: str | None, factor: float = 1.0) -> Target:
    return Target(title, figure, against, factor, at_least=False)


def _pair(case: str, key: str, ours: str = "penstock") -> tuple[str, str]:
    return f"{ours}.{case}.{key}", f"kafka.{case}.{key}"


TARGETS = (
    _at_least("produce 1 KiB, not idempotent, MB/s", *_pair("produce-1k", "mb_s")),
    _at_least("produce 1 KiB, idempotent, MB/s", *_pair("produce-1k-idempotent", "mb_s"), 1.2),
    _at_least(
        "produce 1 KiB, idempotent, MB per CPU s",
        *_pair("produce-1k-idempotent", "mb_cpu_s"),
        1.5,
    ),
    _at_least("produce 100 B, idempotent, MB/s", *_pair("produce-100b-idempotent", "mb_s"), 1.5),
    _at_least(
        "produce 100 B, idempotent, MB per CPU s",
        *_pair("produce-100b-idempotent", "mb_cpu_s"),
        2.0,
    ),
    _at_least("consume warm, MB/s", *_pair("consume-warm", "mb_s")),
    _at_least("consume warm, MB per CPU s", *_pair("consume-warm", "mb_cpu_s")),
    _at_least("consume cold, MB/s", *_pair("consume-cold", "mb_s")),
    _at_least("consume cold, MB per CPU s", *_pair("consume-cold", "mb_cpu_s")),
    _at_least("50 tiny producers, records per CPU s", *_pair("fan", "rec_cpu_s"), 2.0),
    _at_least(
        "steady 1,000 records/s, records per CPU s",
        "penstock.latency-fsync.rec_cpu_s",
        "kafka.latency.rec_cpu_s",
        2.0,
    ),
    _at_most("fsync: ack p50 ms", "penstock.latency-fsync.ack_p50_ms", "floor.fsync.p50_ms", 3.0),
    _at_most("fsync: ack p99 ms", *_pair("latency-fsync", "ack_p99_ms"), 1 / 3),
    _at_most("fsync: end to end p99 ms", *_pair("latency-fsync", "e2e_p99_ms"), 1 / 3),
    _at_most("no fsync: ack p50 ms", *_pair("latency", "ack_p50_ms", "penstock-nofsync")),
    _at_most("no fsync: ack p99 ms", *_pair("latency", "ack_p99_ms", "penstock-nofsync")),
    _at_most("no fsync: end to end p50 ms", *_pair("latency", "e2e_p50_ms", "penstock-nofsync")),
    _at_most("no fsync: end to end p99 ms", *_pair("latency", "e2e_p99_ms", "penstock-nofsync")),
    _at_most("ready, s", "penstock.start.ready_s", None, 0.7),
    _at_most("resident when idle, MB", "penstock.start.rss_mb", None, 120),
    _at_most("resident at load, MB", "penstock.produce-1k-idempotent.rss_peak_mb", None, 400),
    _at_most("500 consumers, record arrives p99 ms", *_pair("fanout", "p99_ms")),
    _at_most("5,000 partitions, idle CPU %", "penstock.partitions.idle_cpu_percent", None, 2),
    _at_most("5,000 partitions, metadata ms", "penstock.partitions.metadata_p50_ms", None, 100),
    _at_least(
        "5,000 partitions, MB per CPU s to twelve",
        "penstock.partitions.mb_cpu_s_with",
        "penstock.partitions.mb_cpu_s_without",
        0.9,
    ),
    _at_least("transactions of 1 record, commits/s", *_pair("transactions", "r1p1_commits_s"), 2.0),
    _at_most("transactions of 1 record, commit p99 ms", *_pair("transactions", "r1p1_p99_ms"), 0.5),
    _at_least(
        "transactions over 10 partitions, commits/s",
        *_pair("transactions", "r100p10_commits_s"),
        2.0,
    ),
    _at_most(
        "transactions over 10 partitions, commit p99 ms",
        *_pair("transactions", "r100p10_p99_ms"),
        0.5,
    ),
    _at_least(
        "transactions with offsets, commits/s",
        *_pair("transactions", "r100p10_offsets_commits_s"),
        2.0,
    ),
    _at_least(
        "transactions of 1,000 records, records/s", *_pair("transactions", "r1000p10_records_s")
    ),
    _at_least("read_committed, records/s", *_pair("transactions", "read_committed_records_s")),
    _at_least(
        "read_committed against read_uncommitted, records/s",
        "penstock.transactions.read_committed_records_s",
        "penstock.transactions.read_uncommitted_records_s",
        0.9,
    ),
)


def medians(rows: Iterable[Row]) -> dict[str, float]:
    """The median of every figure over the rounds; rows that failed don't count."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if not row.get("ok"):
            continue
        for key, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                name = f"{row['contender']}.{row['case']}.{key}"
                values.setdefault(name, []).append(float(value))
    return {name: statistics.median(found) for name, found in values.items()}


def table(rows: list[Row]) -> str:
    """A markdown table: figure, ours, theirs, ratio, the target and whether it is reached."""
    found = medians(rows)
    lines = [
        "| figure | Penstock | against | ratio | target | reached |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    for target in TARGETS:
        ours = found.get(target.figure)
        theirs = 1.0 if target.against is None else found.get(target.against)
        if ours is None or theirs is None:
            continue
        limit = target.factor * theirs
        reached = ours >= limit if target.at_least else ours <= limit
        sign = ">=" if target.at_least else "<="
        if target.against is None:
            shown, ratio, wanted = "", "", f"{sign} {target.factor:g}"
        else:
            shown = number(theirs)
            ratio = f"{ours / theirs:.2f}" if theirs else ""
            wanted = f"{sign} {target.factor:.2f} x"
        mark = "yes" if reached else "NO"
        lines.append(f"| {target.title} | {number(ours)} | {shown} | {ratio} | {wanted} | {mark} |")
    return "\n".join(lines)


def number(value: float) -> str:
    """Three or more significant digits, thousands with commas."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
