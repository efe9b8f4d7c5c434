"""A client that never ends is excused only where its own library is proven to be deadlocked."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from chaos import standstill
from chaos.clients import SILENT
from chaos.standstill import LOOKS, MainThreads, join_all, turns_taken
from support.waiting import eventually

Turns = Mapping[int, int]


def looked(*seen: Turns) -> MainThreads:
    turns = iter(seen)
    mains = MainThreads(lambda: next(turns))
    for _ in seen:
        mains.look()
    return mains


def still(*turns: int) -> list[Turns]:
    """Looks that are just enough, at threads that never have a turn."""
    return [dict(enumerate(turns))] * (LOOKS + 1)


def test_a_thread_without_a_turn_stands_still_after_enough_looks() -> None:
    assert looked(*still(7)).all_stand_still(1)
    assert not looked(*still(7)[1:]).all_stand_still(1)


def test_a_turn_begins_the_count_again() -> None:
    assert not looked(*still(7), {0: 8}).all_stand_still(1)
    assert not looked(*still(7), {0: 8}, *still(8)[2:]).all_stand_still(1)
    assert looked(*still(7), *still(8)).all_stand_still(1)


def test_another_client_that_runs_or_has_gone_excuses_none() -> None:
    busy: list[Turns] = [{0: 7, 1: number} for number in range(LOOKS + 1)]
    assert not looked(*busy).all_stand_still(1)
    assert not looked(*busy).all_stand_still(2)
    assert not looked(*still(7)).all_stand_still(2)
    assert not looked(*still(7), {}).all_stand_still(1)
    assert looked(*still(7, 9)).all_stand_still(2)


@pytest.fixture
def thread_named() -> Iterator[Callable[[str], threading.Thread]]:
    """Makes threads that wait until the test is over."""
    over, made = threading.Event(), list[threading.Thread]()

    def make(name: str) -> threading.Thread:
        made.append(threading.Thread(target=over.wait, name=name))
        made[-1].start()
        return made[-1]

    yield make
    over.set()
    for thread in made:
        thread.join()


def joined(
    threads: list[threading.Thread], turns: Callable[[], Turns], seconds: float
) -> tuple[list[str], list[str]]:
    return join_all(
        threads,
        MainThreads(turns),
        may_deadlock=lambda name: name.startswith("member"),
        seconds=seconds,
        look_s=0.001,
    )


def test_threads_that_end_are_neither_late_nor_deadlocked() -> None:
    ended = threading.Thread(target=str)
    ended.start()
    assert joined([ended], dict, 60) == ([], [])


def test_a_deadlocked_member_is_told_from_one_that_waits_for_a_server(
    thread_named: Callable[[str], threading.Thread],
) -> None:
    member = thread_named("member")
    assert joined([member], lambda: {1: 7}, 60) == ([], ["member"])
    turns = iter(range(10**9))
    assert joined([member], lambda: {1: next(turns)}, 0.2) == (["member"], [])
    assert joined([member], dict, 0.2) == (["member"], []), "nothing is known of its client"


def test_nothing_but_a_client_that_can_deadlock_is_excused(
    thread_named: Callable[[str], threading.Thread],
) -> None:
    threads = [thread_named("member"), thread_named("producer")]
    late = ["member", "producer"]
    assert joined(threads, lambda: {1: 7}, 0.2) == (late, [])
    assert joined(threads, lambda: {1: 7, 2: 7}, 0.2) == (late, [])


@pytest.mark.skipif(sys.platform != "linux", reason="the counts are those of Linux")
def test_a_client_runs_that_waits_for_a_server_and_a_thread_does_not_that_waits_for_a_lock() -> (
    None
):
    from confluent_kafka import Consumer

    lock, named = threading.Lock(), threading.Event()

    def wait_for_lock() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(standstill.NAME)
        named.set()
        with lock:
            pass

    locked = threading.Thread(target=wait_for_lock)
    with socket.create_server(("127.0.0.1", 0)) as silent, lock:
        locked.start()
        assert named.wait(60)
        assert turns_taken().keys() == {locked.native_id}
        port = silent.getsockname()[1]
        consumer = Consumer(
            {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "g", "logger": SILENT}
        )
        (main,) = turns_taken().keys() - {locked.native_id}

        def one_ran_alone() -> bool:
            before = turns_taken()
            eventually(lambda: turns_taken()[main] > before[main])
            return turns_taken()[locked.native_id] == before[locked.native_id]

        # Not so at once: it may still have been on its way to the lock.
        eventually(one_ran_alone)
        consumer.close()
    locked.join()
    assert not turns_taken()
