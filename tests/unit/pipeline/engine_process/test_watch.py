"""How a lost master or server is found, without Spark."""

import socket

from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.engine_process.watch import (
    LOOK_S,
    MISSES_MAX,
    STARVED_S,
    Reach,
    Starved,
    addresses,
    answers,
    watch_of,
)
from support.simulated.clock import ManualClock


def test_a_masters_url_names_its_addresses() -> None:
    assert addresses("spark://a:7077,b:7078") == [("a", 7077), ("b", 7078)]
    assert addresses("sc://host:15003/;use_ssl=true") == [("host", 15003)]
    assert addresses("sc://host") == [("host", 15002)]
    assert addresses("spark://[::1]:7077") == [("::1", 7077)]
    for asked_through_spark in ("local[2]", "yarn", "k8s://https://a:443"):
        assert addresses(asked_through_spark) == []


def test_an_address_counts_as_gone_after_some_looks_in_a_row() -> None:
    clock, up = ManualClock(), {("b", 2)}
    reach = Reach([("a", 1), ("b", 2)], clock, connects=lambda place: place in up)
    for _ in range(2 * MISSES_MAX):
        assert reach.problem() == ""
        clock.advance(LOOK_S)
    up.clear()
    for _ in range(MISSES_MAX - 1):
        assert reach.problem() == ""
        assert reach.problem() == ""  # too early for another look
        clock.advance(LOOK_S)
    assert reach.problem() == "a:1, b:2: no connection, 3 times in a row"
    up.add(("a", 1))
    clock.advance(LOOK_S)
    assert reach.problem() == ""


def test_jobs_wait_for_a_first_executor_for_a_time() -> None:
    clock, starved = ManualClock(), Starved(ManualClock())
    starved = Starved(clock)
    assert starved.problem(0, has_jobs=False) == ""
    assert starved.problem(0, has_jobs=True) == ""
    clock.advance(STARVED_S - 1)
    assert starved.problem(1, has_jobs=True) == ""
    assert starved.problem(0, has_jobs=True) == ""
    clock.advance(STARVED_S)
    assert starved.problem(0, has_jobs=True) == f"no executor for {STARVED_S:.0f} s"


def test_a_port_answers_while_something_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
        assert answers(place)
    assert not answers(place)


def test_threads_are_never_lost() -> None:
    watch = watch_of(LocalEngine(1), "", ManualClock())
    assert watch.java is None
    assert watch.problem(has_jobs=True) == ""
