"""What counts as uncompacted."""

from __future__ import annotations

from penstock.lake.compaction.backlog import RESTING_RUNS, Backlog, backlog


def test_partitions_with_a_few_small_runs_are_no_backlog() -> None:
    counts = [(RESTING_RUNS, 500), (RESTING_RUNS + 1, 70), (100, 30)]
    assert backlog(counts) == Backlog(runs=RESTING_RUNS + 101, size_bytes=100, partitions=2)
    assert backlog([]) == Backlog(runs=0, size_bytes=0, partitions=0)
