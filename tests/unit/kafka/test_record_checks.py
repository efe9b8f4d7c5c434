"""Checks of records: what a turn of the loop takes on, what the thread does, and in which order."""

import asyncio
import os
import threading
from typing import Any

import pytest

from penstock.kafka import record_checks
from penstock.kafka.record_checks import (
    OPEN_MAX,
    PACKED_BYTES_MAX,
    TURN_BYTES,
    TURN_RECORDS,
    RecordChecks,
)
from penstock.records.batch import BatchError, check_batch
from penstock.records.check import RecordCheck
from penstock.records.walk import ALIKE_RECORDS, RecordWalk
from support.by_hand import ByHand
from support.raw_batches import LIMITS, NOW, batch, field, good, record, uneven
from support.waiting import turns


def check_of(block: bytes, count: int, **fields: Any) -> RecordCheck:
    whole = batch(block, count, **fields)
    return RecordCheck(check_batch(memoryview(whole), LIMITS, NOW), LIMITS, NOW)


async def test_a_turn_takes_so_many_records_and_the_next_turn_as_many() -> None:
    checks = RecordChecks(ByHand())
    half = uneven(TURN_RECORDS // 2)
    for _ in range(3):
        assert checks.try_now(check_of(half, TURN_RECORDS // 2))
        assert checks.try_now(check_of(half, TURN_RECORDS // 2))
        assert not checks.try_now(check_of(uneven(1), 1))
        await asyncio.sleep(0)
    assert not checks.try_now(check_of(uneven(TURN_RECORDS + 1), TURN_RECORDS + 1))


async def test_a_turn_takes_so_many_bytes_of_what_is_compressed() -> None:
    checks = RecordChecks(ByHand())
    large = record(0, value=field(bytes(TURN_BYTES - 100)))
    assert checks.try_now(check_of(large, 1, codec="zstd"))
    assert checks.try_now(check_of(record(0, value=field(bytes(200))), 1, codec="zstd"))
    assert not checks.try_now(check_of(uneven(1), 1, codec="zstd"))
    assert checks.try_now(check_of(uneven(9), 9))
    await asyncio.sleep(0)
    bomb = check_of(record(0, value=field(bytes(10 << 20))), 1, codec="zstd")
    assert not checks.try_now(bomb)
    assert bomb.walk.decoded_bytes <= 2 * TURN_BYTES
    assert not checks.try_now(check_of(uneven(1), 1, codec="zstd"))


async def test_what_is_refused_costs_its_turn_as_well() -> None:
    checks = RecordChecks(ByHand())
    with pytest.raises(BatchError):
        checks.try_now(check_of(uneven(TURN_RECORDS - 1) + b"\0", TURN_RECORDS - 1))
    assert not checks.try_now(check_of(uneven(2), 2))


async def test_long_records_are_left_to_the_thread_and_headers_count_as_records() -> None:
    checks = RecordChecks(ByHand())
    assert not checks.try_now(check_of(record(0, value=field(bytes(200_000))), 1))
    many = record(0, headers=b"\xa0\x9c\x01" + b"\0\1" * 10_000)
    assert checks.try_now(check_of(many + record(1), 2))
    assert not checks.try_now(check_of(uneven(1), 1))
    await asyncio.sleep(0)
    five = b"".join(record(n, headers=b"\xa0\x9c\x01" + b"\0\1" * 10_000) for n in range(5))
    check = check_of(five, 5)
    assert not checks.try_now(check)
    assert check.walk.work < 5 * 10_000


async def test_a_turn_takes_more_records_where_they_are_alike() -> None:
    checks = RecordChecks(ByHand())
    count = TURN_RECORDS * 5
    assert checks.try_now(check_of(good(count), count))
    assert 0 < checks._records_left < TURN_RECORDS // 2
    short_runs = b"".join(record(n, value=field(b"v" * (n // 8 % 2))) for n in range(count))
    await asyncio.sleep(0)
    check = check_of(short_runs, count)
    assert not checks.try_now(check)
    # A run costs something, however short it is.
    assert check.walk._seen < TURN_RECORDS
    checks.queue(check, lambda error: None)
    checks.close()


async def test_what_has_no_room_in_the_turn_is_not_begun() -> None:
    checks = RecordChecks(ByHand())
    count = TURN_RECORDS * ALIKE_RECORDS + 1
    many = check_of(good(count), count)
    assert not checks.try_now(many)
    packed = check_of(record(0, value=field(os.urandom(PACKED_BYTES_MAX))), 1, codec="zstd")
    assert not checks.try_now(packed)
    assert many.walk.work == packed.walk.decoded_bytes == 0


@pytest.mark.slow
async def test_a_short_batch_overtakes_a_long_one_and_few_are_begun() -> None:
    pool = ByHand()
    checks = RecordChecks(pool)
    over: list[str] = []
    count = 3 * record_checks.STRETCH_RECORDS * record_checks.JOB_STRETCHES
    block = uneven(count)
    opened = [check_of(block, count) for _ in range(OPEN_MAX + 1)]
    for number, check in enumerate(opened):
        checks.queue(check, lambda error, number=number: over.append(f"long {number}"))
    checks.queue(check_of(uneven(5), 5), lambda error: over.append("short"))
    assert checks.waiting_count == OPEN_MAX + 2
    turn = 0
    while checks.waiting_count:
        assert len(pool.jobs) == 1
        pool.run()
        turn += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sum(0 < check.walk.work < count for check in opened) <= OPEN_MAX
    await asyncio.sleep(0)
    assert over == ["long 0", "long 1", "short", "long 2"]
    assert all(check.walk.work == count for check in opened)


async def test_each_outcome_reaches_its_own_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = RecordChecks()
    outcomes: dict[str, Any] = {}
    ended = asyncio.Event()

    def queue(name: str, check: RecordCheck) -> None:
        def done(error: BaseException | None) -> None:
            assert threading.current_thread() is threading.main_thread()
            outcomes[name] = error
            if len(outcomes) == 4:
                ended.set()

        checks.queue(check, done)

    queue("right", check_of(uneven(3), 3))
    queue("broken", check_of(uneven(3), 4))
    bug = check_of(uneven(3), 3)
    monkeypatch.setattr(bug, "walk", None)
    queue("bug", bug)
    false = check_of(uneven(3), 3, max_timestamp=NOW + 5)
    queue("false time", false)
    await ended.wait()
    assert outcomes["right"] is None
    assert isinstance(outcomes["broken"], BatchError)
    assert isinstance(outcomes["bug"], AttributeError)
    assert outcomes["false time"] is None
    assert false.batch.max_timestamp == NOW
    checks.close()


async def test_what_is_forgotten_is_let_go_and_the_others_go_on() -> None:
    pool = ByHand()
    checks = RecordChecks(pool)
    outcomes: list[Any] = []
    items = [check_of(uneven(5), 5) for _ in range(2 * OPEN_MAX)]
    for number, check in enumerate(items):
        checks.queue(check, lambda error, number=number: outcomes.append((number, error)))
    # One that the thread has, and one that waits.
    checks.forget([items[0], items[-1]])
    assert checks.waiting_count == len(items) - 2
    while pool.jobs:
        pool.run()
        await turns()
    assert outcomes == [(number, None) for number in range(1, 2 * OPEN_MAX - 1)]
    assert not checks.waiting_count


async def test_closing_forgets_what_waits() -> None:
    pool = ByHand()
    checks = RecordChecks(pool)
    checks.queue(check_of(uneven(5), 5), lambda error: pytest.fail("closed"))
    checks.close()
    pool.run()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not checks.waiting_count
    assert not pool.jobs


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "zstd"])
async def test_the_loop_turns_while_many_records_are_checked(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: between two turns of the loop it walks TURN_RECORDS at most."""
    loop_thread = threading.current_thread()
    walked_on_loop = [0]
    worst = [0]
    advance = RecordWalk.advance

    def counted(walk: RecordWalk, **arguments: Any) -> bool:
        before = walk.work
        try:
            return advance(walk, **arguments)
        finally:
            if threading.current_thread() is loop_thread:
                walked_on_loop[0] += walk.work - before

    monkeypatch.setattr(RecordWalk, "advance", counted)
    loop = asyncio.get_running_loop()
    turns = [0]
    is_over = asyncio.Event()

    def probe() -> None:
        turns[0] += 1
        worst[0] = max(worst[0], walked_on_loop[0])
        walked_on_loop[0] = 0
        if not is_over.is_set():
            loop.call_soon(probe)

    checks = RecordChecks()
    count = 250_000
    check = check_of(uneven(count), count, codec=codec)
    probe()
    small = [check_of(uneven(1500), 1500) for _ in range(20)]
    for item in small:
        if not checks.try_now(item):
            checks.queue(item, lambda error: None)
        await asyncio.sleep(0)
    assert not checks.try_now(check)
    outcome: list[Any] = []

    def done(error: BaseException | None) -> None:
        outcome.append(error)
        is_over.set()

    checks.queue(check, done)
    turned = turns[0]
    await is_over.wait()
    assert outcome == [None]
    assert turns[0] - turned >= count // (
        record_checks.STRETCH_RECORDS * record_checks.JOB_STRETCHES
    )
    checks.close()
    assert 0 < worst[0] <= TURN_RECORDS


async def test_a_bug_in_taking_one_outcome_leaves_the_others_theirs() -> None:
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
    pool = ByHand()
    checks = RecordChecks(pool)
    taken: list[Any] = []

    def bug(error: BaseException | None) -> None:
        raise RuntimeError

    checks.queue(check_of(uneven(9), 9), taken.append)
    checks.queue(check_of(uneven(5), 5), bug)
    checks.queue(check_of(uneven(5), 5), taken.append)
    while checks.waiting_count:
        pool.run()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert taken == [None, None]
    assert len(told) == 1
