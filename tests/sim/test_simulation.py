"""The simulation repeats itself exactly, and its checkers find what is put before them."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from penstock.order.entry_window import UNRESOLVED_MAX
from penstock.state.commands import DrainAgent, RegisterAgent
from penstock.state.entries import Entry
from sim.agent import STORE_PATIENCE_S
from sim.clocks import LATE_S
from sim.history import History, ViolationError
from sim.twin import Twin

HERE = Path(__file__).resolve().parent
SEEDS = (3, 14, 15, 22)
PLACE = ("topic", 0)
UNSEEN = ("topic", 1)
"""A partition that no client has had an answer of."""


@cache
def _digests(hash_seed: int) -> list[str]:
    """Run each of the seeds in one process, whose strings hash by this number; a line of each."""
    return _printed(
        "from sim.run import one\n"
        f"for seed in {SEEDS}:\n"
        "    result = one(seed)\n"
        "    lengths = hash(tuple(map(len, result.notes)))\n"
        "    print(seed, repr(result.kind), result.trace, result.steps, lengths)\n",
        hash_seed,
    ).splitlines()


def _printed(script: str, hash_seed: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "PYTHONHASHSEED": str(hash_seed),
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE.parent)]),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    assert len(_digests(1)) == len(SEEDS)
    assert _digests(1) == _digests(2)


def test_a_late_deletion_is_forgiven_for_as_long_as_it_may_be_late() -> None:
    assert LATE_S > 3 * STORE_PATIENCE_S


def test_seeds_give_different_runs() -> None:
    # But for the seed's number.
    assert len({line.partition(" ")[2] for line in _digests(1)}) == len(SEEDS)


def test_an_error_in_what_a_peer_answers_ends_the_run() -> None:
    """The peer that asks reads on without that answer, as if the other were away."""
    script = (
        "import sim.agent; from sim.run import one;"
        " sim.agent.serve_wal = lambda *_: {}['no such thing'];"
        f" result = one({SEEDS[0]});"
        " print(result.kind, 'KeyError' in result.detail)"
    )
    assert _printed(script) == "unhandled True\n"


class _World:
    """As much of the world as the history asks."""

    class loop:
        now_s = 0.0

        @classmethod
        def time(cls) -> float:
            return cls.now_s

    def note(self, text: str) -> None:
        pass

    def violated(self, error: ViolationError) -> ViolationError:
        return error

    def catch_up(self) -> None:
        pass


@pytest.fixture
def history() -> Any:
    _World.loop.now_s = 0.0
    found = History(_World())
    for number in range(4):
        found.sending(PLACE, b"p/%d/" % number)
        found.acked(PLACE, number, b"p/%d/" % number)
    _World.loop.now_s = 5.0
    return found


def _broken(kind: str) -> Any:
    return pytest.raises(ViolationError, match=f"^{kind}:")


def test_what_is_right_breaks_nothing(history: Any) -> None:
    history.read(PLACE, 1, [(1, b"p/1/"), (2, b"p/2/")], "c")
    history.listed(PLACE, 4, 4.0, latest=True, who="c")
    history.out_of_range(PLACE, 9, 4.0, "c")
    history.created("topic", 1)
    history.unknown(PLACE, 4.0, "c")
    history.committed_offset(history.committing("g", PLACE, 3))
    history.fetched_offset("g", PLACE, 3, 6.0, "c")
    history.assigned_to("g", 1, "m", [0], "m", life=0)


def test_another_record_at_an_offset(history: Any) -> None:
    with _broken("inconsistent-offsets"):
        history.read(PLACE, 1, [(1, b"p/2/")], "c")


def test_a_record_at_two_offsets(history: Any) -> None:
    with _broken("duplicate"):
        history.read(PLACE, 4, [(4, b"p/2/")], "c")


def test_a_record_that_nobody_sent(history: Any) -> None:
    with _broken("phantom"):
        history.read(PLACE, 4, [(4, b"p/9/")], "c")


def test_a_record_left_out(history: Any) -> None:
    with _broken("poll-skip"):
        history.read(PLACE, 1, [(2, b"p/2/")], "c")
    history.trimming(PLACE, 2)
    history.read(PLACE, 1, [(2, b"p/2/")], "c")


def test_an_acknowledgement_without_an_offset(history: Any) -> None:
    with _broken("spurious-offset"):
        history.acked(PLACE, -1, b"p/1/")


def test_an_end_that_goes_back(history: Any) -> None:
    with _broken("went-back"):
        history.listed(PLACE, 3, 4.0, latest=True, who="c")


def test_a_start_that_nobody_asked_for(history: Any) -> None:
    with _broken("log-start"):
        history.listed(PLACE, 1, 4.0, latest=False, who="c")


def test_an_acknowledged_offset_out_of_range(history: Any) -> None:
    with _broken("spurious-out-of-range"):
        history.out_of_range(PLACE, 3, 4.0, "c")


def test_a_topic_that_is_unknown(history: Any) -> None:
    history.created("topic", 1)
    with _broken("spurious-unknown"):
        history.unknown(PLACE, 6.0, "c")


def test_committed_offsets_that_go_back_or_come_from_nowhere(history: Any) -> None:
    history.committed_offset(history.committing("g", PLACE, 3))
    with _broken("lost-commit"):
        history.fetched_offset("g", PLACE, 2, 6.0, "c")
    with _broken("phantom-commit"):
        history.fetched_offset("g", PLACE, 4, 6.0, "c")


def test_two_generations_and_two_owners(history: Any) -> None:
    history.assigned_to("g", 1, "m", [0], "m", life=0)
    with _broken("two-generations"):
        history.assigned_to("g", 1, "n", [1], "n", life=0)
    with _broken("two-owners"):
        history.assigned_to("g", 1, "m", [0], "n", life=0)


def test_a_commit_of_an_earlier_owner(history: Any) -> None:
    early, begun_before = (history.committing("g", PLACE, 1, generation=1) for _ in range(2))
    history.committed_in_order(early, 0)
    _World.loop.now_s = 6.0
    history.committed_in_order(history.committing("g", PLACE, 2, generation=2), 0)
    history.committed_in_order(begun_before, 0)
    _World.loop.now_s = 7.0
    late = history.committing("g", PLACE, 1, generation=1)
    history.committed_in_order(late, 1)
    with _broken("two-owners"):
        history.committed_in_order(late, 0)


class _Restored:
    """As much of a restored cluster's oracle as the history asks."""

    leader_epoch = 5

    def bounds(self, place: Any) -> tuple[int, int] | None:
        return (0, 2) if place in self.places() else None

    def places(self) -> list[Any]:
        return [PLACE, UNSEEN]

    def partition_count(self, topic: str) -> int:
        return int(topic == "topic")

    def committed(self, group_id: str, place: Any) -> int:
        return 1


def test_what_a_restore_may_have_lost(history: Any) -> None:
    history.committed_offset(history.committing("g", PLACE, 3))
    history.restored(_Restored())
    assert history.has_lost([b"p/1/", b"p/2/"])
    assert not history.has_lost([b"p/0/", b"p/1/"])
    # What came after the moment may be stored again at any offset, and what came before may not.
    history.acked(PLACE, 2, b"p/3/")
    history.listed(PLACE, 3, 6.0, latest=True, who="c")
    history.fetched_offset("g", PLACE, 1, 6.0, "c")
    with _broken("lost-commit"):
        history.fetched_offset("g", PLACE, 0, 6.0, "c")
    with _broken("duplicate"):
        history.acked(PLACE, 3, b"p/1/")
    with _broken("went-back"):
        history.listed(PLACE, 2, 6.0, latest=True, who="c")


def test_leader_epochs_after_a_restore(history: Any) -> None:
    history.restored(_Restored())
    history.labelled(PLACE, 1, 0)
    history.labelled(PLACE, 2, 5)
    history.epoch_ended(PLACE, 0, (0, 2))
    with _broken("leader-epoch"):
        history.labelled(PLACE, 2, 0)
    with _broken("leader-epoch"):
        history.epoch_ended(PLACE, 0, (0, 4))
    with _broken("leader-epoch"):
        history.restored(_Restored())


def test_leader_epochs_of_a_partition_that_nobody_had_seen_before_the_restore(
    history: Any,
) -> None:
    """Commits in doubt had left two records there, and one that was made later has none."""
    history.restored(_Restored())
    history.labelled(UNSEEN, 1, 0)
    history.labelled(UNSEEN, 2, 5)
    history.epoch_ended(UNSEEN, 0, (0, 2))
    history.labelled(("topic", 2), 0, 5)
    with _broken("leader-epoch"):
        history.labelled(UNSEEN, 1, 5)


def test_a_producer_id_that_two_are_given(history: Any) -> None:
    history.named(7, "p0")
    with _broken("producer-id-twice"):
        history.named(7, "p1")


def test_a_cluster_is_restored_in_mid_life() -> None:
    script = (
        "from sim.run import one;"
        " result = one(137);"
        " print(result.kind, result.counts['restored in mid-life'],"
        " result.counts['asked where an epoch ended'] > 0)"
    )
    assert _printed(script) == " 1 True\n"


def _entry(n: int) -> Entry:
    commands: list[Any] = [DrainAgent(agent=7, draining=True)]
    if n == 0:
        commands = [RegisterAgent(agent=7, labels={}, software="", endpoint="", level_max=1)]
    return Entry(agent=7, epoch=1, n=n, stamp_ms=0, commands=commands)


def test_a_generation_of_a_group_that_was_deleted_since(history: Any) -> None:
    """The member had joined before, and is told its share afterwards."""
    life = history.life_of("g")
    history.group_lives["g"] += 1
    history.assigned_to("g", 1, "m", [0], "m", life=life)
    history.assigned_to("g", 1, "n", [0], "n", life=history.life_of("g"))


def test_numbers_that_run_away() -> None:
    broken: list[str] = []
    twin = Twin(lambda kind, _: broken.append(kind))
    twin.journaled(1, _entry(0))
    twin.applied(1, _entry(0), [None])
    twin.journaled(2, _entry(UNRESOLVED_MAX))
    assert not broken
    twin.journaled(3, _entry(UNRESOLVED_MAX + 1))
    assert broken == ["numbers-ran-away"]
