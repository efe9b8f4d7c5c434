"""Seeds that failed once, by what was wrong: each fails again where its mend is taken out.

A change in what is simulated, or drawn, makes another run of a seed. The rules of the product that
were mended have unit tests of their own; what the simulation itself had wrong has these.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parent / "run.py"

KNOWN = {
    # An agent's clock and the journal's were 30 days ahead together, and so retention was right.
    2121: "spurious-out-of-range",
    # Retention of the restored cluster took records before they were compared.
    2241: "restored-another",
    # The outputs of a cleaning were looked at after bits of them had changed.
    5067: "clean-changed",
    20209: "actor-failed",
    # The archive's end was older than the restore window, after the store had been away.
    20313: "stuck",
    # A WAL with a changed bit was taken over.
    21405: "takeover-failed",
    # A WAL file was used again after rows that the journal has lost.
    20616: "agent-died",
    # Dead agents held their replicas' files, which were dropped when they could not be set aside,
    21023: "lost-history-deleted",
    # and then could not be for ever.
    31096: "stuck",
    # What the parent's agents had asked for came to its bucket after the restore.
    20323: "inherited-deleted",
    # A group was deleted between a member's join and its share, which counted as the next group's.
    3134636197: "two-generations",
    # Records of a partition that no client had seen before the restore counted as the next epoch's.
    466530298880: "leader-epoch",
    # A replica was damaged again before the comparison that clears its agent.
    466530304530: "agent-died",
    # Of a partition that was clean up to 97, the runs up to 93 were cleaned once more.
    466530303760: "clean-lost",
    # A WAL was put right between the read of a takeover and its verdict.
    466530306712: "takeover-failed",
    # A cluster was restored to a moment before its first topic, and clients picked one of none.
    700458: "actor-failed",
    # A batch that a cleaning had emptied was counted among those that were merged.
    1637: "merge-changed",
}


@pytest.fixture(scope="module")
def printed() -> str:
    """Run all of them in one process, which imports the product once; return what it prints."""
    seeds = ",".join(map(str, KNOWN))
    command = [f"--seeds={seeds}", "--processes=1", f"--stop-at={len(KNOWN) + 1}"]
    done = subprocess.run(
        [sys.executable, str(RUN), *command], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("seed", KNOWN)
def test_a_seed_that_failed_once(seed: int, printed: str) -> None:
    assert f"{len(KNOWN)} seeds in" in printed, printed
    assert f"SEED {seed}:" not in printed, printed


def test_all_of_them_pass(printed: str) -> None:
    assert f"{len(KNOWN)} passed, 0 failed" in printed, printed
