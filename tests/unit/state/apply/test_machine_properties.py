"""Any sequence of commands: the state machine equals the dumb twin, and itself when replayed."""

import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.order.outcome import Standing
from penstock.replica.replica import Replica
from penstock.state.apply.machine import LogMachine
from penstock.state.commands import AnyCommand, CreateTopic
from penstock.state.entries import decode_entry
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.schema import INTEGRITY_LEVEL
from support.examples import examples
from unit.state.histories import (
    IDS,
    assert_equal_to_twin,
    blunt,
    commits,
    expiries,
    group_expiries,
    segments,
    simple,
    time_settings,
)
from unit.state.orders import TestClock, open_order
from unit.state.twin import Twin


@settings(max_examples=examples(0.5))
@given(data=st.data())
def test_any_sequence_of_commands_equals_the_twin_and_its_replay(data: st.DataObject) -> None:
    # Closed on every way out: drawing may give an example up at any point.
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clock = TestClock()
        level = data.draw(st.sampled_from([3, 4, 5, 5]), label="level")
        order = stack.enter_context(closing(open_order(directory, clock, level=level)))
        queries = stack.enter_context(closing(Queries(directory / "metadata.sqlite")))
        view = StateView.load(queries)
        twin = Twin()
        twin.level = level
        for topic_id, topic_name in zip(IDS[:2], "tu", strict=True):
            created = CreateTopic(name=topic_name, topic_id=topic_id, partitions=2)
            view.apply(order.append([created]).outcome.changes)
            twin.apply(created, clock.ms)
        for _ in range(data.draw(st.integers(1, 14), label="entries")):
            steps = st.integers(-2, 3) | st.sampled_from([-20_000, 20_000])
            clock.ms += data.draw(steps, label="time")
            commands: list[AnyCommand] = []
            kinds = ["mixed", "mixed", "segment", "expiry", "groups"]
            kind = data.draw(st.sampled_from(kinds + ["time"] * (level >= INTEGRITY_LEVEL)))
            if kind == "segment":
                commands = [data.draw(segments(queries))]
            elif kind == "expiry":
                commands = [data.draw(expiries(queries))]
            elif kind == "groups":
                commands = [data.draw(group_expiries(queries))]
            elif kind == "time":
                commands = [data.draw(time_settings(clock.ms))]
            for _ in range(data.draw(st.integers(0, 3))):
                strategy = simple if data.draw(st.integers(0, 2)) == 0 else commits(twin)
                commands.append(data.draw(strategy))
            applied = order.append(commands)
            expected = [blunt(twin.apply(command, applied.time_ms)) for command in commands]
            assert [blunt(answer) for answer in applied.outcome.answers] == expected
            view.apply(applied.outcome.changes)
            assert_equal_to_twin(queries, view, twin)
        entries = list(order.journal_after(0))
        digest = order.digest()

        machine = LogMachine()
        replica = stack.enter_context(
            closing(Replica.open(directory / "replay.sqlite", machine, fsync=False))
        )
        for entry in entries:
            replica.append(entry.body, stamp_ms=entry.time_ms)
            # Applying an entry twice equals applying it once.
            if decode_entry(entry.body, position=0).n > 0:
                before = replica.digest()[1]
                machine.drop_caches()
                again = replica.append(entry.body, stamp_ms=entry.time_ms)
                assert again.outcome.standing is Standing.REPEATED
                assert replica.digest()[1] == before

        fresh = stack.enter_context(
            closing(Replica.open(directory / "fresh.sqlite", LogMachine(), fsync=False))
        )
        for entry in entries:
            fresh.append(entry.body, stamp_ms=entry.time_ms)
        assert fresh.digest() == digest
