"""The plugin that runs async tests and fixtures (`support/async_tests.py`), by such tests."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.simulated.virtual_loop import VirtualLoop

ended: list[str] = []


@pytest.fixture
async def loop_of_fixture() -> AsyncIterator[asyncio.AbstractEventLoop]:
    loop = asyncio.get_running_loop()
    yield loop
    assert asyncio.get_running_loop() is loop
    ended.append("fixture")


@pytest.fixture
async def nothing() -> None:
    await asyncio.sleep(0)


async def test_a_fixture_is_made_on_the_loop_of_its_test(
    loop_of_fixture: asyncio.AbstractEventLoop, nothing: None
) -> None:
    assert nothing is None
    assert asyncio.get_running_loop() is loop_of_fixture
    assert not isinstance(loop_of_fixture, VirtualLoop)
    ended.clear()


@pytest.fixture
def ended_before() -> None:
    ended.clear()
    yield
    assert ended == ["fixture"]


def test_a_fixture_ends_on_that_loop_too(
    ended_before: None, loop_of_fixture: asyncio.AbstractEventLoop
) -> None:
    """Also of a test that isn't async."""
    assert not loop_of_fixture.is_running()


async def test_an_hour_of_virtual_time_takes_none(
    virtual_loop: VirtualLoop, loop_of_fixture: asyncio.AbstractEventLoop
) -> None:
    assert asyncio.get_running_loop() is virtual_loop is loop_of_fixture
    before = virtual_loop.time()
    await asyncio.sleep(3600)
    assert 3600 <= virtual_loop.time() - before < 3601


@pytest.mark.slow
@pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
async def test_what_is_raised_fails_the_test() -> None:
    await asyncio.sleep(0)
    raise ZeroDivisionError


@pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
@given(number=st.integers())
async def test_what_an_example_raises_fails_the_property(number: int) -> None:
    await asyncio.sleep(0)
    raise ZeroDivisionError


@given(number=st.integers())
async def test_each_example_has_a_loop_of_its_own(number: int) -> None:
    loop = asyncio.get_running_loop()
    assert not hasattr(loop, "seen")
    loop.seen = True  # type: ignore[attr-defined]
