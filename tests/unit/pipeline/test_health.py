"""/health of `penstock pipeline run` answers by the engine and by the oldest lag."""

import pytest

from penstock.pipeline.health import Health, health
from penstock.pipeline.table_watch import NO_DEAD_LETTERS, DeadLetters, Lag


def found(
    *,
    is_ready: bool = True,
    engine: str = "ready",
    oldest: Lag = Lag("", 0.0),
    silent_s: float = 1.0,
    worst: DeadLetters = NO_DEAD_LETTERS,
    alarm_share: float = 0.1,
) -> Health:
    return health(
        is_ready=is_ready,
        engine=engine,
        oldest=oldest,
        silent_s=silent_s,
        alarm_s=60.0,
        worst=worst,
        alarm_share=alarm_share,
    )


def test_an_engine_that_takes_jobs_and_tables_that_keep_up_are_well() -> None:
    assert found() == Health(True, "ok\nengine: ready\noldest lag: none\n")
    late = found(oldest=Lag("sales.orders", 59.9))
    assert late.is_ok
    assert "oldest lag: 59.9 s, table sales.orders\n" in late.text


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (
            {"is_ready": False, "engine": "resting (Java ended with status -9)"},
            "engine: resting (Java ended with status -9)",
        ),
        ({"oldest": Lag("a.b", 61.0)}, "oldest lag: 61.0 s, table a.b, above 60 s"),
        ({"silent_s": 75.0}, "agents: no answer for 75 s, above 60 s"),
        (
            {"worst": DeadLetters("a.b", 0.125, 8_000)},
            "dead letters: 12.50 % of 8,000 records in the last 60 minutes, table a.b, above 10 %",
        ),
    ],
)
def test_each_of_them_alone_makes_it_not_well(state: dict[str, object], says: str) -> None:
    told = found(**state)  # type: ignore[arg-type]
    assert not told.is_ok
    assert told.text.startswith("not ok\n")
    assert says in told.text


def test_few_dead_letters_are_said_and_are_well() -> None:
    few = found(worst=DeadLetters("a.b", 0.1, 50))
    assert few.is_ok
    assert "dead letters: 10.00 % of 50 records in the last 60 minutes, table a.b\n" in few.text
    assert found(worst=DeadLetters("a.b", 1.0, 50), alarm_share=1.0).is_ok
