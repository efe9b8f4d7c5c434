"""What `penstock pipeline run` tells of tables on /metrics, by looks at the journal."""

import msgspec

from penstock.pipeline import table_watch
from penstock.pipeline.api_messages import PartitionState, TableProgress, Topics, TopicState
from penstock.pipeline.table_watch import NO_DEAD_LETTERS, WINDOW_S, DeadLetters, TableWatch
from penstock.pipeline.tables.table_state import TableState, decode_state
from support.simulated.clock import ManualClock

TOPIC_ID = "0" * 32


def topics(end: int, time_ms: int = 60_000) -> Topics:
    state = PartitionState(log_start=0, high_watermark=end, size_bytes=100)
    configs = {"penstock.table": "iceberg"}
    topic = TopicState(name="t", topic_id=TOPIC_ID, configs=configs, partitions=[state])
    return Topics(position=1, time_ms=time_ms, topics=[topic])


def noted(state: str) -> TableProgress:
    return TableProgress(
        topic_id=TOPIC_ID, table="penstock.t", offsets=[(0, 8)], state=state, time_ms=20_000
    )


def test_a_tables_figures_are_what_its_job_last_noted() -> None:
    watch = TableWatch(ManualClock())
    state = TableState(
        rows=70, files=3, snapshots=5, followed=80, set_aside=20, bad_records=30, conflicts=2
    )
    watch.look(topics(end=10), [noted(msgspec.json.encode(state).decode())])
    figures = watch.figures()
    assert {name: found["penstock.t"] for name, found in figures.items()} == {
        table_watch.ROWS: 70,
        table_watch.FILES: 3,
        table_watch.SNAPSHOTS: 5,
        table_watch.BAD_RECORDS: 30,
        table_watch.BAD_SHARE: 0.25,
        table_watch.CONFLICTS: 2,
        table_watch.BEHIND_RECORDS: 2,
        table_watch.BEHIND_SECONDS: 40,
    }


def test_what_is_not_known_has_no_figure() -> None:
    watch = TableWatch(ManualClock())
    for text in ("", "no JSON", '{"status": "stopped", "bad_records": 4}'):
        watch.look(topics(end=8), [noted(text)])
        figures = watch.figures()
        assert figures[table_watch.ROWS] == figures[table_watch.FILES] == {}
        assert figures[table_watch.BAD_SHARE] == {"penstock.t": 0}
    assert figures[table_watch.BAD_RECORDS] == {"penstock.t": 4}
    watch.look(topics(end=8), [])
    assert watch.figures()[table_watch.BAD_RECORDS] == {}


def test_a_note_of_an_older_release_is_read() -> None:
    state = decode_state('{"status":"ok","error":"","lost":[["0",0,1,2]],"bad_records":7}')
    assert (state.bad_records, state.rows, state.conflicts, state.bad_share) == (7, -1, 0, 0.0)


def counted(followed: int, set_aside: int) -> TableProgress:
    state = TableState(followed=followed, set_aside=set_aside)
    return noted(msgspec.json.encode(state).decode())


def test_dead_letters_are_those_of_the_last_hour() -> None:
    clock = ManualClock()
    watch = TableWatch(clock)
    assert watch.dead_letters() == NO_DEAD_LETTERS
    watch.look(topics(end=8), [counted(1_000, 900)])
    assert watch.dead_letters() == NO_DEAD_LETTERS, "those came before this process"
    clock.advance(60)
    watch.look(topics(end=8), [counted(1_100, 925)])
    assert watch.dead_letters() == DeadLetters("penstock.t", 0.25, 100)
    clock.advance(WINDOW_S / 2)
    watch.look(topics(end=8), [counted(1_200, 925)])
    assert watch.dead_letters() == DeadLetters("penstock.t", 0.125, 200)
    clock.advance(WINDOW_S / 2 + 60)
    watch.look(topics(end=8), [counted(1_300, 926)])
    assert watch.dead_letters() == DeadLetters("penstock.t", 0.005, 200)
    watch.look(topics(end=8), [])
    assert watch.dead_letters() == NO_DEAD_LETTERS


def test_a_table_that_was_made_again_counts_from_0() -> None:
    clock = ManualClock()
    watch = TableWatch(clock)
    watch.look(topics(end=8), [counted(1_000, 900)])
    clock.advance(10)
    watch.look(topics(end=8), [counted(10, 10)])
    assert watch.dead_letters() == NO_DEAD_LETTERS
    clock.advance(10)
    watch.look(topics(end=8), [counted(20, 11)])
    assert watch.dead_letters() == DeadLetters("penstock.t", 0.1, 10)
