"""Old semantics stay: below level 4 this release makes of a journal what an older release made.

The older one is real: the package of its commit, run as a process of its own. The journals are
those that the property tests of apply draw.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.replica.replica import Replica
from penstock.state.entries import decode_entry
from penstock.state.levels import level_needed
from penstock.state.schema import INTEGRITY_LEVEL
from support import release_applier
from support.old_release import apply_by, unpack_release
from unit.state.apply.test_machine_properties import (
    test_any_sequence_of_commands_equals_the_twin_and_its_replay as draw_log_histories,
)
from unit.state.test_cluster_properties import (
    test_any_entries_of_several_agents_equal_the_twin_and_their_replay as draw_cluster_histories,
)
from unit.state.test_pipeline_properties import (
    test_any_history_keeps_the_invariants_and_replays_to_the_same as draw_pipeline_histories,
)

OLD = 3
JOURNALS_MAX = 25
"""Of each kind: what one costs is its digests."""

Journal = list[tuple[int, bytes]]


@pytest.fixture(scope="module")
def old_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_release(OLD, tmp_path_factory.mktemp("release"))


@contextmanager
def recording() -> Iterator[list[Journal]]:
    """The journals that replicas append to inside the block; filled at its end."""
    journals: dict[int, Journal] = {}
    kept: list[Any] = []  # so that no other replica gets the id of one
    append = Replica.append

    def record(replica: Any, body: bytes, *, stamp_ms: int, **others: Any) -> Any:
        appended = append(replica, body, stamp_ms=stamp_ms, **others)
        kept.append(replica)
        journals.setdefault(id(replica), []).append((stamp_ms, body))
        return appended

    found: list[Journal] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replica, "append", record)
        yield found
    found += journals.values()


def below_level_4(journal: Journal) -> Journal:
    """Its entries before the first that the old release doesn't know, or that raises the level past
    what it knows."""
    for index, (_, body) in enumerate(journal):
        for command in decode_entry(body, position=index).commands:
            if max(getattr(command, "level", 0), level_needed(command)) >= INTEGRITY_LEVEL:
                return journal[:index]
    return journal


@pytest.mark.slow  # few examples may bring no command of the levels in question
@pytest.mark.parametrize(
    "draw_histories", [draw_log_histories, draw_cluster_histories, draw_pipeline_histories]
)
def test_both_releases_make_the_same_state_at_every_position(
    old_release: Path, draw_histories: Callable[[], None]
) -> None:
    with recording() as journals:
        draw_histories()
    below = [tuple(below_level_4(journal)) for journal in journals]
    chosen = sorted({journal for journal in below if journal}, key=len)[-JOURNALS_MAX:]
    assert chosen
    levels = {levels_of(journal) for journal in chosen}
    assert levels & {2, 3}, levels
    old = apply_by(old_release, chosen)
    assert old["file"].startswith(str(old_release))
    new = release_applier.apply_all(chosen, old["tables"])
    for journal, ours, theirs in zip(chosen, new["journals"], old["journals"], strict=True):
        for position, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
            differ = [table for table in its if mine[table] != its[table]]
            entry = decode_entry(journal[position][1], position=position)
            assert not differ, (differ, position, entry)


def levels_of(journal: Sequence[tuple[int, bytes]]) -> int:
    """The highest level that an entry of it asks for; 1: none does."""
    return max(
        getattr(command, "level", 1)
        for _, body in journal
        for command in decode_entry(body, position=0).commands
    )
